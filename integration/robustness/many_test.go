package robustness

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simdriver/sim"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simhost"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testenv"
)

// cycles is how many containers the test for growth creates and deletes.
const cycles = 500

// The first thirty creates after a boot come together.
func TestT18ThirtyCreatesAtOnceGetTheirOwnGPUAndShareOneView(t *testing.T) {
	testenv.EachCgroup(t, func(t *testing.T, version int) {
		const creates = 30
		h := newHost(t, simhost.Options{Driver: sim.Options{GPUs: sim.MaxGPUs}, Env: testenv.Options{Cgroup: version}}, false)
		if views := h.checkState(t); len(views) > 0 {
			t.Fatalf("the views %v are there before the first create", views)
		}
		// The Import of the image, and the options, are made by the test itself.
		var options []testenv.RunOptions
		for i := range creates {
			o := h.run(t, h.NewID(), i%sim.MaxGPUs, look)
			o.Timeout = 3 * time.Minute
			options = append(options, o)
		}
		results := make([]testenv.Result, creates)
		var group sync.WaitGroup
		for i := range creates {
			group.Go(func() {
				r, err := h.TryRun(t, options[i])
				if err != nil {
					r.Error += err.Error()
				}
				results[i] = r
			})
		}
		group.Wait()
		for i, r := range results {
			if want := h.expect(i % sim.MaxGPUs); r.Output != want {
				t.Errorf("container %d sees %q (%s), want %q", i, r.Output, r.Error, want)
			}
			if mark := h.mark(t, r.ID); string(mark) != masked {
				t.Errorf("container %d sees %q in the masked directory, want %q", i, mark, masked)
			}
		}
		if views := h.checkState(t); len(views) != 1 {
			t.Errorf("there are the views %v, want one", views)
		}
		if rest := h.Ctr(t, "tasks", "ls", "-q"); rest != "" {
			t.Errorf("containerd still has the tasks %q", rest)
		}
	})
}

// One shim, as a pod has it, creates and deletes containers all day. Nothing in
// it, in containerd or in the mount table may become more.
func TestFiveHundredCreatesAndDeletesMakeNothingGrow(t *testing.T) {
	const workers, limit = 4, 3 * time.Minute
	h := newHost(t, simhost.Options{}, false)
	group := []string{"io.containerd.runc.v2.group=pod"}
	holder := h.run(t, "holder", 0, "sleep 3600")
	holder.Detach, holder.Annotations = true, group
	h.Run(t, holder)
	h.settle(t)
	shims := h.ShimPIDs("holder")
	if len(shims) != 1 {
		t.Fatalf("shims of the pod: %v", shims)
	}
	// Containers that are made beforehand, so that a cycle is the task's alone.
	ids := make([]string, workers)
	for i := range ids {
		o := h.run(t, h.NewID(), i%4, "test -c /dev/nvidiactl")
		o.Annotations = group
		ids[i] = h.Create(t, o)
	}
	cycle := func(id string) error {
		_, stderr, err := h.CtrErr("tasks", "start", "--null-io", id)
		if err != nil {
			return fmt.Errorf("%w: %s", err, stderr)
		}
		return nil
	}
	// What is allocated once is allocated now.
	for _, id := range ids {
		if err := cycle(id); err != nil {
			t.Fatal(err)
		}
	}
	before, snapshot := measure(t, h, shims[0]), h.snapshot(t)
	begin := time.Now()
	errs := make([]error, workers)
	var running sync.WaitGroup
	for w, id := range ids {
		running.Go(func() {
			for range cycles / workers {
				if errs[w] = cycle(id); errs[w] != nil {
					return
				}
			}
		})
	}
	running.Wait()
	took := time.Since(begin)
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	var after use
	// Handles of processes that the shim library waited for are closed with its collection
	// of garbage, every 30 seconds.
	testenv.Until(40*time.Second, func() bool {
		after = measure(t, h, shims[0])
		return after.within(before)
	})
	t.Logf("%d cycles in %v (%v each); before: %+v; after: %+v", cycles, took.Round(time.Second), (took / cycles).Round(time.Millisecond), before, after)
	if !after.within(before) {
		t.Errorf("something grew in %d cycles: before %+v, after %+v", cycles, before, after)
	}
	if took > limit {
		t.Errorf("%d cycles took %v, more than %v", cycles, took, limit)
	}
	if got := h.ShimPIDs("holder"); !slices.Equal(got, shims) {
		t.Errorf("the pod's shims are %v, they were %v", got, shims)
	}
	snapshot.AssertUnchanged(t)
	h.checkState(t)
	for _, id := range append(ids, "holder") {
		h.Remove(t, id)
	}
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

// use is what must not grow.
type use struct {
	ShimFiles, ShimThreads, ContainerdFiles, Mounts, Shims, Sockets int
}

func measure(t *testing.T, h *host, shim int) use {
	t.Helper()
	entries := func(dir string) int {
		list, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		return len(list)
	}
	return use{
		ShimFiles:       entries(fmt.Sprintf("/proc/%d/fd", shim)),
		ShimThreads:     entries(fmt.Sprintf("/proc/%d/task", shim)),
		ContainerdFiles: entries(fmt.Sprintf("/proc/%d/fd", h.PID())),
		Mounts:          strings.Count(h.MountTable(t), h.Dir+"/") + strings.Count(h.MountTable(t), h.Driver.Dir+"/"),
		Shims:           len(h.ShimPIDs("holder")),
		Sockets:         socketsOf(t, h),
	}
}

// within allows what comes and goes: a connection that is being closed, threads of
// the Go runtime. 500 cycles that each lost one thing would be far outside.
func (u use) within(before use) bool {
	return u.ShimFiles <= before.ShimFiles+4 && u.ShimThreads <= before.ShimThreads+12 &&
		u.ContainerdFiles <= before.ContainerdFiles+8 && u.Mounts <= before.Mounts &&
		u.Shims <= before.Shims && u.Sockets <= before.Sockets
}
