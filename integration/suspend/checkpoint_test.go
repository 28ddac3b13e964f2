package suspend

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simdriver/sim"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simhost"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testenv"
)

// criuHost is a host with CRIU in containerd's PATH. Its directory dir holds criu, a link.
func criuHost(t *testing.T, o simhost.Options) (h host, dir string) {
	t.Helper()
	criu := testenv.CRIU(t)
	dir = t.TempDir()
	for name, target := range map[string]string{"containerd-shim-nvidia-v2": filepath.Join(testenv.ShimDir(), "containerd-shim-nvidia-v2"), "criu": criu} {
		if err := os.Symlink(target, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	o.Env.ShimDir = dir
	o.Config += "\n[policy]\nallow-checkpoints = true\n"
	h = newHost(t, o)
	h.quiet = true
	testenv.RemoveFIFOs(t)
	return h, dir
}

// checkpoint writes a checkpoint. flags are "--rw" or nothing.
func (c *container) checkpoint(t *testing.T, name string, flags ...string) {
	t.Helper()
	c.criu(t, "criu-dump.log", append(append([]string{"containers", "checkpoint", "--task"}, flags...), c.id, name)...)
}

// criu runs ctr. If that fails, the end of CRIU's log goes into the test's.
func (c *container) criu(t *testing.T, log string, args ...string) {
	t.Helper()
	if _, _, err := c.CtrErr(args...); err != nil {
		data, _ := os.ReadFile(filepath.Join(c.BundleDir(c.id), log))
		t.Fatalf("%v\n%s", err, data[max(0, len(data)-4000):])
	}
}

// restore creates the container again, from a checkpoint.
func (c *container) restore(t *testing.T, name string, flags ...string) {
	t.Helper()
	c.criu(t, "work/restore.log", append(append([]string{"containers", "restore", "--live"}, flags...), c.id, name)...)
	c.findInit(t)
}

// findInit finds the container's first process.
func (c *container) findInit(t *testing.T) {
	t.Helper()
	for line := range strings.Lines(c.Ctr(t, "tasks", "ls")) {
		if f := strings.Fields(line); f[0] == c.id {
			c.init, _ = strconv.Atoi(f[1])
		}
	}
}

// wantMask checks that the container sees its GPU and no other, in the only mask.
func (c *container) wantMask(t *testing.T) {
	t.Helper()
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/root/proc/driver/nvidia/gpus", c.init))
	if err != nil || len(entries) != 1 {
		t.Errorf("the mask has %v, %v", entries, err)
	}
	mounts, err := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", c.init))
	if n := bytes.Count(mounts, []byte(" /proc/driver ")); err != nil || n != 1 {
		t.Errorf("%d mounts on /proc/driver: %v", n, err)
	}
}

// The processes of a checkpoint continue in a new container, again and again.
func TestAContainerIsRestored(t *testing.T) {
	for _, test := range []struct {
		name, config, out string
		flags             []string
	}{
		{"freeze", "", "/dev/shm", nil},
		// Memory and files are of the same moment.
		{"suspend-gpu", asked, "/tmp", []string{"--rw"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			testenv.EachCgroup(t, func(t *testing.T, version int) {
				h, _ := criuHost(t, simhost.Options{Config: test.config, Env: testenv.Options{Cgroup: version}})
				h.out = test.out
				c := h.start(t, 2)
				for i := range 2 {
					name := fmt.Sprintf("test/checkpoint:%d", i)
					c.checkpoint(t, name, test.flags...)
					c.wantStatus(t, "RUNNING")
					c.wantMemory(t, 4*mib)
					c.counts(t, 2)
					h.Gone(t, c.id)
					c.restore(t, name, test.flags...)
					c.wantStatus(t, "RUNNING")
					c.wantMemory(t, 4*mib)
					c.wantMask(t)
					c.counts(t, 2)
				}
				c.pause(t)
				c.resume(t)
				c.counts(t, 2)
				h.Gone(t, c.id)
			})
		})
	}
}

// A process that checks continuously never sees /proc/driver without the mask.
func TestARestoredContainerIsMaskedBeforeItRuns(t *testing.T) {
	h, _ := criuHost(t, simhost.Options{})
	o := simhost.Visible("0")
	o.Args = []string{"/bin/sh", "-c", "while [ -e /proc/driver/nvidia/version ]; do :; done; echo >/tmp/unmasked; sleep 600"}
	c := &container{host: h, id: h.Start(t, o)}
	c.checkpoint(t, "test/checkpoint:mask")
	h.Gone(t, c.id)
	for range 3 {
		c.restore(t, "test/checkpoint:mask")
		c.wantMask(t)
		if _, err := os.Stat(fmt.Sprintf("/proc/%d/root/tmp/unmasked", c.init)); err == nil {
			t.Error("the container ran without the mask")
		}
		h.Gone(t, c.id)
	}
}

func TestACheckpointEndsTheContainer(t *testing.T) {
	h, _ := criuHost(t, simhost.Options{})
	c := h.start(t, 1)
	c.Ctr(t, "tasks", "checkpoint", "--exit", c.id)
	testenv.Await(t, "the container has stopped", func() bool {
		return !strings.Contains(c.Ctr(t, "tasks", "ls"), "RUNNING")
	})
	c.wantGone(t)
}

func TestACheckpointThatFailsLeavesTheContainerAsItWas(t *testing.T) {
	h, dir := criuHost(t, simhost.Options{})
	c := h.start(t, 2)
	steer(t, h, sim.Checkpoint{Function: "Lock", PID: c.counters[1], Result: 801})
	c.refused(t, "checkpoint", fmt.Sprintf("nvidia: cannot suspend the GPUs of container %s: process %d: cuCheckpointProcessLock", c.id, c.counters[1]))
	c.wantStatus(t, "RUNNING")
	c.counts(t, 2)
	steer(t, h)
	if err := os.Remove(filepath.Join(dir, "criu")); err != nil {
		t.Fatal(err)
	}
	simhost.Script(t, filepath.Join(dir, "criu"), "exit 1")
	c.refused(t, "checkpoint", "criu")
	c.wantStatus(t, "RUNNING")
	c.wantMemory(t, 4*mib)
	c.counts(t, 2)
}

// A container that a checkpoint has left paused is resumed as if it had been suspended.
func TestShimctlResumesWhatACheckpointHasLeftPaused(t *testing.T) {
	h, _ := criuHost(t, simhost.Options{})
	c := h.start(t, 1)
	steer(t, h, sim.Checkpoint{Function: "Restore", Result: 999})
	c.Ctr(t, "tasks", "checkpoint", c.id) // ctr pauses, and does not say that resuming failed
	c.wantStatus(t, "PAUSED")
	steer(t, h)
	h.Ctl(t, "resume", "--state", h.State, c.id)
	c.wantStatus(t, "RUNNING")
	c.wantMemory(t, 2*mib)
	c.counts(t, 1)
}

// The shim's death ends its container, and CRIU, as with the stock shim.
func TestAShimThatIsKilledDuringACheckpoint(t *testing.T) {
	h, dir := criuHost(t, simhost.Options{})
	c := h.start(t, 1)
	waiting, hold := slowCRIU(t, dir)
	done := make(chan error, 1)
	go func() {
		_, _, err := c.CtrErr("tasks", "checkpoint", c.id)
		done <- err
	}()
	testenv.Await(t, "CRIU waits", waiting)
	c.killShim(t)
	if err := <-done; err == nil {
		t.Error("checkpoint succeeded without a shim")
	}
	_ = os.Remove(hold)
	c.wantGone(t)
}

// slowCRIU makes the criu in dir wait while the file hold exists; waiting reports whether it does.
func slowCRIU(t *testing.T, dir string) (waiting func() bool, hold string) {
	t.Helper()
	name := filepath.Join(dir, "criu")
	criu, err := filepath.EvalSymlinks(name)
	if err == nil {
		err = os.Remove(name)
	}
	if err != nil {
		t.Fatal(err)
	}
	hold = simhost.WriteFile(t, filepath.Join(dir, "hold"), "")
	simhost.Script(t, name, fmt.Sprintf("while [ \"$1\" != --version ] && [ -e %[1]s/hold ]; do : >%[1]s/waiting; sleep 0.02; done; exec %[2]s \"$@\"", dir, criu))
	return func() bool { _, err := os.Stat(filepath.Join(dir, "waiting")); return err == nil }, hold
}

func TestARestoreOnAFullGPU(t *testing.T) {
	h, _ := criuHost(t, simhost.Options{})
	if err := h.Driver.Memory(5 * mib); err != nil {
		t.Fatal(err)
	}
	c := h.start(t, 2)
	c.checkpoint(t, "test/checkpoint:full")
	h.Gone(t, c.id)
	other := h.start(t, 1)
	_, _, err := c.CtrErr("containers", "restore", "--live", c.id, "test/checkpoint:full")
	if err == nil {
		t.Fatal("restored on a full GPU")
	}
	simhost.Want(t, err.Error(), fmt.Sprintf("nvidia: cannot resume the GPUs of container %s", c.id), "CUDA_ERROR_OUT_OF_MEMORY")
	h.Gone(t, c.id)
	other.counts(t, 1)
	h.Gone(t, other.id)
	c.restore(t, "test/checkpoint:full")
	c.counts(t, 2)
}

func TestAShimThatIsKilledWhileItRestores(t *testing.T) {
	h, dir := criuHost(t, simhost.Options{})
	c := h.start(t, 1)
	c.checkpoint(t, "test/checkpoint:killed")
	h.Gone(t, c.id)
	waiting, hold := slowCRIU(t, dir)
	done := make(chan error, 1)
	go func() {
		_, _, err := c.CtrErr("containers", "restore", "--live", c.id, "test/checkpoint:killed")
		done <- err
	}()
	testenv.Await(t, "CRIU waits", waiting)
	masks := func() int {
		mounts, err := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", h.PID()))
		if err != nil {
			t.Fatal(err)
		}
		return bytes.Count(mounts, []byte("/nvidia-proc-driver "))
	}
	if n := masks(); n != 1 {
		t.Errorf("%d masks are ready for CRIU", n)
	}
	c.killShim(t)
	if err := <-done; err == nil {
		t.Error("restored without a shim")
	}
	_ = os.Remove(hold)
	h.Gone(t, c.id)
	testenv.Await(t, "the mask is unmounted", func() bool { return masks() == 0 })
	c.restore(t, "test/checkpoint:killed")
	c.counts(t, 1)
}
