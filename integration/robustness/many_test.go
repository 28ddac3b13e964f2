package robustness

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simhost"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testenv"
)

// How many containers the test for growth creates and deletes, and how many run meanwhile. `make
// test-long` sets more.
var (
	cycles     = flag.Int("cycles", 100, "containers that are created and deleted in one pod")
	containers = flag.Int("containers", 10, "containers that run beside them")
)

// atOnce is how many containers are created or removed at the same time.
const atOnce = 4

// each calls f for 1 to n, atOnce at a time.
func each(t *testing.T, n int, f func(i int) error) {
	t.Helper()
	var next atomic.Int64
	errs := make([]error, atOnce)
	var running sync.WaitGroup
	for w := range atOnce {
		running.Go(func() {
			for i := int(next.Add(1)); i <= n && errs[w] == nil; i = int(next.Add(1)) {
				errs[w] = f(i)
			}
		})
	}
	running.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

// One shim, as a pod has it, creates and deletes containers all day beside others. Nothing in it,
// in containerd, in the mount table or in the state directory may grow.
func TestManyCreatesAndDeletesMakeNothingGrow(t *testing.T) {
	h := newHost(t, simhost.Options{}, false)
	h.MustRun(t, h.run(t, "warm", 0, "true"))
	alone := h.snapshot(t)
	group := []string{"io.containerd.runc.v2.group=pod"}
	holder := h.run(t, "holder", 0, "sleep 3600")
	holder.Detach, holder.Annotations = true, group
	h.Run(t, holder)
	neighbour := func(i int) string { return fmt.Sprint("neighbour-", i) }
	each(t, *containers, func(i int) error {
		o := h.run(t, neighbour(i), i%4, "sleep 3600")
		o.Detach = true
		r, err := h.TryRun(t, o)
		if err == nil && r.ExitCode != 0 {
			err = errors.New(r.Error)
		}
		return err
	})
	h.settle(t)
	shims := h.ShimPIDs("holder")
	if len(shims) != 1 {
		t.Fatalf("shims of the pod: %v", shims)
	}
	// Containers that are made beforehand, so that a cycle is the task's alone.
	ids := make(chan string, atOnce)
	for i := range atOnce {
		o := h.run(t, h.NewID(), i%4, "test -c /dev/nvidiactl")
		o.Annotations = group
		ids <- h.Create(t, o)
	}
	cycle := func(int) error {
		id := <-ids
		defer func() { ids <- id }()
		_, stderr, err := h.CtrErr("tasks", "start", "--null-io", id)
		if err != nil {
			return fmt.Errorf("%w: %s", err, stderr)
		}
		return nil
	}
	each(t, 2*atOnce, cycle) // what is allocated once is allocated now
	before, snapshot := measure(t, h, shims[0]), h.snapshot(t)
	begin := time.Now()
	each(t, *cycles, cycle)
	took := time.Since(begin)
	var after use
	// Handles of processes that the shim library waited for are closed by its garbage collection,
	// every 30 seconds.
	testenv.Until(func() bool {
		after = measure(t, h, shims[0])
		return after.within(before)
	})
	t.Logf("%d containers, %d cycles in %v; before: %+v; after: %+v", *containers, *cycles, took.Round(time.Second), before, after)
	if !after.within(before) {
		t.Errorf("something grew in %d cycles: before %+v, after %+v", *cycles, before, after)
	}
	if got := h.ShimPIDs("holder"); !slices.Equal(got, shims) {
		t.Errorf("the pod's shims are %v, they were %v", got, shims)
	}
	snapshot.AssertUnchanged(t)
	if views := h.checkState(t); len(views) != 1 {
		t.Errorf("there are the views %v, want one", views)
	}
	each(t, *containers, func(i int) error { h.Gone(t, neighbour(i)); return nil })
	for range atOnce {
		h.Remove(t, <-ids)
	}
	h.Remove(t, "holder")
	alone.AssertUnchanged(t)
}

// socketsOf counts the sockets of shims.
func socketsOf(t *testing.T, h *host) int {
	t.Helper()
	list, err := os.ReadDir(filepath.Join(h.Dir, "s"))
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}

// use holds what must not grow; memory is RssAnon in KiB.
type use struct {
	ShimFiles, ShimThreads, ShimMemory, ContainerdFiles, ContainerdMemory, Mounts, Shims, Sockets int
}

var (
	rssAnon = regexp.MustCompile(`RssAnon:\s+(\d+)`)
	threads = regexp.MustCompile(`Threads:\s+(\d+)`)
)

func measure(t *testing.T, h *host, shim int) use {
	t.Helper()
	// files counts open files but the eventfds of containerd's OOM watcher: with cgroup v1 it keeps
	// one for good if a cgroup's path is used again before the kernel reports that the cgroup is gone.
	files := func(pid int) (n int) {
		links, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
		if err != nil {
			t.Fatal(err)
		}
		for _, link := range links {
			if target, err := os.Readlink(link); err == nil && target != "anon_inode:[eventfd]" {
				n++
			}
		}
		return n
	}
	status := func(pid int, field *regexp.Regexp) int {
		data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		if err != nil {
			t.Fatal(err)
		}
		n, _ := strconv.Atoi(string(field.FindSubmatch(data)[1]))
		return n
	}
	return use{
		ShimFiles:        files(shim),
		ShimThreads:      status(shim, threads),
		ShimMemory:       status(shim, rssAnon),
		ContainerdFiles:  files(h.PID()),
		ContainerdMemory: status(h.PID(), rssAnon),
		Mounts:           strings.Count(h.MountTable(t), h.Dir+"/") + strings.Count(h.MountTable(t), h.Driver.Dir+"/"),
		Shims:            len(h.ShimPIDs("holder")),
		Sockets:          socketsOf(t, h),
	}
}

// within allows what comes and goes: a connection that is being closed, threads of the Go runtime,
// its heap. A leak in every cycle would exceed this by far.
func (u use) within(before use) bool {
	return u.ShimFiles <= before.ShimFiles+4 && u.ShimThreads <= before.ShimThreads+12 && u.ShimMemory <= before.ShimMemory+8<<10 &&
		u.ContainerdFiles <= before.ContainerdFiles+8 && u.ContainerdMemory <= before.ContainerdMemory+16<<10 &&
		u.Mounts <= before.Mounts && u.Shims <= before.Shims && u.Sockets <= before.Sockets
}
