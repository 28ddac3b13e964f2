package robustness

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simhost"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testenv"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testenv/api"
)

// The disk of the bundles, /run on most hosts, is full at every point of a creation.
func TestT65AFullDiskOfTheBundlesLeavesNothing(t *testing.T) {
	h := newHost(t, simhost.Options{}, false)
	bundles := filepath.Join(h.State, "io.containerd.runtime.v2.task")
	if err := unix.Mount("bundles", bundles, "tmpfs", 0, "mode=0711,size=512k"); err != nil {
		t.Fatal(err)
	}
	filler, err := os.Create(filepath.Join(bundles, "filler"))
	if err != nil {
		t.Fatal(err)
	}
	defer filler.Close()
	h.MustRun(t, h.run(t, "warm", 0, "true"))
	started, failed := 0, 0
	for spare := range int64(20) {
		id := h.NewID()
		h.Create(t, h.run(t, id, 1, look))
		before := h.snapshot(t)
		page := int64(os.Getpagesize())
		if err := filler.Truncate(512<<10 - spare*page); err != nil {
			t.Fatal(err)
		}
		if err := unix.Fallocate(int(filler.Fd()), 0, 0, 512<<10-spare*page); err != nil {
			t.Fatal(err)
		}
		r := h.StartTask(t, id)
		if err := filler.Truncate(0); err != nil {
			t.Fatal(err)
		}
		if r.ExitCode == 0 {
			started++
		} else {
			failed++
		}
		if (r.ExitCode == 0 || r.Output != "") && r.Output != h.expect(1) {
			t.Errorf("with %d pages the container sees %q (%s), want %q", spare, r.Output, r.Error, h.expect(1))
		}
		if mark := h.mark(t, id); mark != nil && string(mark) != masked {
			t.Errorf("with %d pages the container sees %q in the masked directory", spare, mark)
		}
		// A task that could not be deleted on the full disk is deleted now.
		_, _, _ = h.CtrErr("tasks", "rm", "--force", id)
		if strings.Contains(r.Error, "bootstrap.json") || strings.Contains(r.Error, "shim-binary-path") {
			// containerd leaves a shim behind if it cannot write these files after starting it
			// (core/runtime/v2/binary.go).
			kill(t, unix.SIGKILL, h.ShimPIDs(id)...)
		}
		before.AssertUnchanged(t)
		h.remove(t, id)
		if t.Failed() {
			t.Fatalf("with %d pages: %s", spare, r.Error)
		}
	}
	t.Logf("%d started, %d failed", started, failed)
	if started == 0 || failed == 0 {
		t.Error("the sizes are not those at which a creation fails or succeeds")
	}
}

// Containers live on, and a Create that has lost its daemon leaves nothing.
func TestContainerdRestartsWhileContainersRunAndOneIsCreated(t *testing.T) {
	h := newHost(t, simhost.Options{}, false)
	neighbour := h.run(t, "neighbour", 0, "sleep 600")
	neighbour.Detach = true
	h.Run(t, neighbour)
	h.settle(t)
	id := h.NewID()
	h.Create(t, h.run(t, id, 1, look))
	before := h.snapshot(t)
	// The shim that is to make another view waits for the lock.
	lock, err := os.OpenFile(filepath.Join(h.Driver.StateDir, "view/lock"), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	views, err := filepath.Glob(filepath.Join(h.Driver.StateDir, "view/*/root"))
	if err != nil || len(views) != 1 {
		t.Fatalf("views: %v, %v", views, err)
	}
	if err := unix.Unmount(views[0], unix.MNT_DETACH); err != nil {
		t.Fatal(err)
	}
	created := make(chan error, 1)
	client := api.Connect(t, h.Env)
	go func() {
		_, err := client.Create(t.Context(), id)
		created <- err
	}()
	testenv.Await(t, "the shim waits for the lock", func() bool {
		for _, pid := range h.ShimPIDs(id) {
			open, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
			for _, fd := range open {
				if name, err := os.Readlink(fd); err == nil && name == lock.Name() {
					return true
				}
			}
		}
		return false
	})
	h.Restart(t)
	if err := <-created; err == nil {
		t.Error("the daemon that ended has answered")
	}
	lock.Close()
	h.remove(t, id)
	if mark := h.mark(t, id); mark != nil {
		t.Errorf("the container ran and saw %q", mark)
	}
	if got := h.MustRun(t, h.run(t, h.NewID(), 1, look)); got != h.expect(1) {
		t.Errorf("the next container sees %q, want %q", got, h.expect(1))
	}
	before.AssertUnchanged(t)
	if got := h.Exec(t, "neighbour", "sh", "-c", look).Output; got != h.expect(0) {
		t.Errorf("the neighbour sees %q, want %q", got, h.expect(0))
	}
	h.Remove(t, "neighbour")
}

// bus takes a GPU off the bus and puts it back.
type bus struct{ names []string }

func (b bus) off() (err error) {
	for _, name := range b.names {
		if e := os.Rename(name, name+".away"); e != nil {
			err = e
		}
	}
	return err
}

func (b bus) on() (err error) {
	for _, name := range b.names {
		if e := os.Rename(name+".away", name); e != nil {
			err = e
		}
	}
	return err
}

// Its containers continue, the other GPUs work, and a creation meanwhile gets the GPU or is
// refused.
func TestAGPUFallsOffTheBus(t *testing.T) {
	h := newHost(t, simhost.Options{}, false)
	lost := h.Driver.GPUs[3]
	gpu := bus{[]string{
		filepath.Join(h.Driver.ProcRoot, "driver/nvidia/gpus", lost.BusID),
		filepath.Join(h.Driver.DevRoot, fmt.Sprintf("dev/nvidia%d", lost.Minor)),
	}}
	ask := func(n int) testenv.RunOptions {
		o := h.run(t, h.NewID(), n, look)
		o.Env = []string{"NVIDIA_VISIBLE_DEVICES=" + h.Driver.GPUs[n].UUID}
		return o
	}
	holder := ask(3)
	holder.ID, holder.Args[2], holder.Detach = "holder", "sleep 600", true
	h.Run(t, holder)
	h.settle(t)
	before := h.snapshot(t)

	if err := gpu.off(); err != nil {
		t.Fatal(err)
	}
	if got := h.Exec(t, "holder", "sh", "-c", look).Output; got != h.expect(3) {
		t.Errorf("its container sees %q, want %q", got, h.expect(3))
	}
	if r := h.Run(t, ask(3)); r.ExitCode == 0 || !strings.Contains(r.Error, lost.UUID) || strings.Contains(strings.TrimSpace(r.Error), "\n") {
		t.Errorf("without it: exit status %d, %s", r.ExitCode, r.Error)
	}
	if got := h.MustRun(t, ask(1)); got != h.expect(1) {
		t.Errorf("another container sees %q, want %q", got, h.expect(1))
	}
	if err := gpu.on(); err != nil {
		t.Fatal(err)
	}

	stop := make(chan struct{})
	var flips sync.WaitGroup
	flips.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				if err := gpu.off(); err != nil {
					t.Error(err)
				}
				time.Sleep(time.Millisecond)
				if err := gpu.on(); err != nil {
					t.Error(err)
				}
				time.Sleep(time.Millisecond)
			}
		}
	})
	started := 0
	for range 20 {
		r := h.Run(t, ask(3))
		switch {
		case r.ExitCode == 0 && r.Output == h.expect(3):
			started++
		case r.ExitCode == 0 || strings.Contains(strings.TrimSpace(r.Error), "\n") || h.mark(t, r.ID) != nil:
			t.Errorf("it comes and goes: %q, %s", r.Output, r.Error)
		}
	}
	close(stop)
	flips.Wait()
	t.Logf("%d of 20 started while it came and went", started)
	if got := h.MustRun(t, ask(3)); got != h.expect(3) {
		t.Errorf("with it again a container sees %q, want %q", got, h.expect(3))
	}
	before.AssertUnchanged(t)
	h.Remove(t, "holder")
}
