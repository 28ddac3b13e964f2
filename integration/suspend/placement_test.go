package suspend

import (
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simdriver/sim"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simhost"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testenv"
)

// on returns the indices of the GPUs that the container's processes have memory on.
func (c *container) on(t *testing.T) (gpus []int) {
	t.Helper()
	for _, pid := range c.PIDs(t, c.id) {
		var at []byte // where it is, by the minor number of the GPU that it was allocated on
		var minors []fs.FileMode
		fds, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
		for _, fd := range fds {
			to, _ := os.Readlink(fd)
			info, err := os.Stat(fd)
			switch {
			case strings.HasPrefix(to, "/memfd:nvidia-sim-cuda"):
				at, _ = os.ReadFile(fd)
			case strings.HasPrefix(to, "/memfd:nvidia-sim-gpu") && err == nil && info.Size() > 0:
				minors = append(minors, info.Mode().Perm())
			}
		}
		for _, m := range minors {
			gpus = append(gpus, slices.Index(c.Minors, int(at[m])))
		}
	}
	slices.Sort(gpus)
	return slices.Compact(gpus)
}

func (c *container) wantOn(t *testing.T, want ...int) {
	t.Helper()
	if got := c.on(t); !slices.Equal(got, want) {
		t.Errorf("GPU memory is on GPUs %v, want %v", got, want)
	}
}

// shimctl runs nvidia-shimctl suspend or resume for the container.
func (c *container) shimctl(verb string, flags ...string) (string, error) {
	args := append([]string{"--config", c.Driver.ConfigPath, verb, "--state", c.State}, flags...)
	out, err := exec.Command(filepath.Join(testenv.ShimDir(), "nvidia-shimctl"), append(args, c.id)...).CombinedOutput()
	return string(out), err
}

func (c *container) resumeOn(t *testing.T, flags ...string) {
	t.Helper()
	if out, err := c.shimctl("resume", flags...); err != nil {
		t.Fatalf("resume %v: %v: %s", flags, err, out)
	}
}

func (c *container) notResumedOn(t *testing.T, words string, flags ...string) {
	t.Helper()
	out, err := c.shimctl("resume", flags...)
	if err == nil || strings.Count(out, "\n") != 1 {
		t.Errorf("resume %v: %v: %s", flags, err, out)
	}
	simhost.Want(t, out, words)
}

func TestResumeOnAnotherGPUOfTheContainer(t *testing.T) {
	h := newHost(t, simhost.Options{Config: asked})
	h.visible = "0,1,3"
	c := h.start(t, 2)
	c.wantOn(t, 0)
	c.notResumedOn(t, "container "+c.id+" is not suspended, so its GPU memory cannot go to another GPU", "--gpu", "1")
	for _, step := range []struct {
		flags []string
		on    int
	}{
		{[]string{"--gpu", "1"}, 1}, {nil, 1}, {[]string{"--gpu", "1=3"}, 3},
		{[]string{"--gpu", h.Driver.GPUs[0].UUID}, 0}, {[]string{"--gpu", "0=3", "--gpu", "3=1"}, 3},
	} {
		c.pause(t)
		c.wantMemory(t, 0)
		c.resumeOn(t, step.flags...)
		c.wantStatus(t, "RUNNING")
		c.wantMemory(t, 4*mib)
		c.wantOn(t, step.on)
		c.counts(t, 2)
	}
	c.pause(t)
	for _, refused := range []struct{ gpu, words string }{
		{"2", `GPU "2": "2" is not one of its GPUs: 0 (` + h.Driver.GPUs[0].UUID + "), 1 ("},
		{"0=2", `"2" is not one of its GPUs`},
		{"3=1,3=0", "a GPU is named twice"},
		{"web", `"web" is not one of its GPUs`},
	} {
		c.notResumedOn(t, refused.words, "--gpu", refused.gpu)
		c.wantStatus(t, "PAUSED")
		c.wantMemory(t, 0)
	}
	c.resume(t) // what was refused is forgotten
	c.wantOn(t, 3)
	c.counts(t, 2)
}

// The GPU that the memory should go to is full, or the driver refuses: the container stays paused,
// and can be resumed where it was.
func TestResumeOnAnotherGPUThatIsNotPossible(t *testing.T) {
	h := newHost(t, simhost.Options{Config: asked})
	if err := h.Driver.Memory(5 * mib); err != nil {
		t.Fatal(err)
	}
	h.visible = "0,1"
	c := h.start(t, 2)
	h.visible = "1"
	other := h.start(t, 1)
	c.pause(t)
	c.notResumedOn(t, "3 MiB of GPU 1 are free and 4 MiB are needed: free memory, then resume again", "--gpu", "1")
	c.wantStatus(t, "PAUSED")
	h.Gone(t, other.id)
	steer(t, h, sim.Checkpoint{Function: "Restore", PID: c.counters[1], Result: 1})
	c.notResumedOn(t, fmt.Sprintf("process %d: cuCheckpointProcessRestore: CUDA_ERROR_INVALID_VALUE: the driver does not move it between these GPUs: resume it where it was", c.counters[1]), "--gpu", "1")
	c.wantStatus(t, "PAUSED")
	c.wantMemory(t, 0)
	steer(t, h)
	c.resume(t)
	c.wantMemory(t, 4*mib)
	c.counts(t, 2)
}

// The driver lists whole GPUs, and all that a process sees.
func TestContainersWhoseMemoryStays(t *testing.T) {
	h := newHost(t, simhost.Options{Config: asked})
	h.visible, h.privileged = "0,1", true
	c := h.start(t, 1)
	c.pause(t)
	c.notResumedOn(t, "the driver exchanges whole GPUs, and those of containers without privileges", "--gpu", "1")
	c.resume(t)
	c.counts(t, 1)
	out, err := c.shimctl("resume", "--gpu", "1", "--pod", "ml/web")
	if err == nil {
		t.Errorf("resume --gpu --pod: %s", out)
	}
}
