//go:build gpu

package gpu

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testenv/mounts"
)

// twoGPUs are the first two of this host.
func twoGPUs(t *testing.T) (a, b gpu) {
	t.Helper()
	gpus := hostGPUs(t)
	if len(gpus) < 2 {
		t.Skip("NOT TESTED: this host has one GPU")
	}
	return gpus[0], gpus[1]
}

// resumeOn resumes the container on other GPUs, and returns how long that took.
func (c *counting) resumeOn(t *testing.T, gpus ...string) time.Duration {
	t.Helper()
	args := []string{"resume", "--state", c.env.State}
	for _, g := range gpus {
		args = append(args, "--gpu", g)
	}
	start := time.Now()
	if r := ctl(t, c.env, append(args, c.id)...); r.ExitCode != 0 {
		t.Fatalf("nvidia-shimctl %q: %s%s", args, r.Error, r.Output)
	}
	return time.Since(start)
}

// wantUsed fails unless so many MiB of a GPU are in use, and not many more.
func wantUsed(t *testing.T, g gpu, mib int) {
	t.Helper()
	if used, _ := memoryOf(t, g); used < mib || used > mib+2048 {
		t.Errorf("%d MiB of GPU %s are in use, want %d", used, g.Index, mib)
	}
}

// The GPU of a suspended container is taken by another container: it goes on on a second GPU that it
// was given, and back.
func TestMemoryMovesToAnotherGPUOfTheContainer(t *testing.T) {
	a, b := twoGPUs(t)
	env := newEnv(t, suspends)
	neighbour := startCounting(t, env, b.Index, "64")
	c := startCounting(t, env, visible([]gpu{a, b}), "2048", "512")
	c.task(t, "pause")
	_, free := memoryOf(t, a)
	other := startHold(t, env, a.Index, free-1024)
	if _, _, err := env.CtrErr("tasks", "resume", c.id); err == nil || !strings.Contains(err.Error(), "free memory, then resume again") {
		t.Errorf("resume on the full GPU: %v", err)
	}
	t.Logf("to GPU %s in %s", b.Index, c.resumeOn(t, b.Index))
	c.counts(t)
	wantUsed(t, b, 2560+64)
	env.Remove(t, other)
	c.task(t, "pause")
	t.Logf("on GPU %s again in %s", b.Index, c.task(t, "resume"))
	c.counts(t)
	c.task(t, "pause")
	t.Logf("to GPU %s in %s", a.Index, c.resumeOn(t, a.UUID))
	c.counts(t)
	wantUsed(t, a, 2560)
	if r := env.Exec(t, c.id, "ls", "/proc/driver/nvidia/gpus"); len(strings.Fields(r.Output)) != 2 {
		t.Errorf("the mask has %q", r.Output)
	}
	env.Remove(t, c.id)
	neighbour.counts(t)
	env.Remove(t, neighbour.id)
}

// The driver wants to know where each GPU goes that the container has, and takes no other, even from
// root of the host: so nothing outside the grant can be named.
func TestTheDriverMovesNoProcessToAGPUOutsideItsContainer(t *testing.T) {
	a, b := twoGPUs(t)
	env := newEnv(t, suspends)
	dir, err := compiled()
	if err != nil {
		t.Fatal(err)
	}
	c := startCounting(t, env, a.Index, "512")
	before, _ := memoryOf(t, b)
	pair := func(from, to gpu) string { return from.UUID + "=" + to.UUID }
	for _, tc := range []struct {
		pairs []string
		moves bool
	}{
		{[]string{pair(a, b)}, false}, {[]string{pair(a, b), pair(b, a)}, false},
		{[]string{pair(a, a), pair(b, b)}, false}, {[]string{pair(a, a)}, true},
	} {
		byHand(t, "suspend", c.pids[0])
		out, err := exec.Command(filepath.Join(dir, "suspend"), append([]string{"resume", strconv.Itoa(c.pids[0])}, tc.pairs...)...).CombinedOutput()
		if (err == nil) != tc.moves {
			t.Errorf("%v: %v: %s", tc.pairs, err, out)
		}
		if err != nil {
			byHand(t, "resume", c.pids[0])
		}
		c.counts(t)
		if used, _ := memoryOf(t, b); used > before {
			t.Errorf("%v: %d MiB of the other GPU are in use, %d before", tc.pairs, used, before)
		}
	}
	env.Remove(t, c.id)
}

// torchProgram uses two GPUs: memory on each, copies between them and NCCL. With arrays of 1 GiB the
// driver suspends such a process and cannot restore it, outside of containers too (580.159.04).
const torchProgram = `
import time, torch, torch.cuda.nccl as nccl
keep = [torch.arange(n << 20, device="cuda:%d" % i, dtype=torch.float32) for i, n in enumerate((64, 48))]
n = 0
while True:
    a = [torch.full((1 << 20,), i + 1.0, device="cuda:%d" % i) for i in (0, 1)]
    nccl.all_reduce(a)
    there = keep[1].to("cuda:0")
    ok = all(bool((t == 3).all()) for t in a) and bool((there == keep[0][:48 << 20]).all())
    print("passed" if ok else "WRONG", n, flush=True)
    n += 1
    time.sleep(0.05)
`

// PyTorch on two GPUs, over an overlay of this host's file system, which has it.
func TestSuspendPyTorchOnTwoGPUs(t *testing.T) {
	a, b := twoGPUs(t)
	if out, err := exec.Command("python3", "-c", "import torch").CombinedOutput(); err != nil {
		t.Skipf("NOT TESTED: this host has no PyTorch: %v: %s", err, out)
	}
	root := overlayOfHost(t) // before containerd, so that it goes after it
	env := newEnv(t, suspends)
	beforeA, _ := memoryOf(t, a)
	beforeB, _ := memoryOf(t, b)
	python, err := exec.Command("python3", "-c", "import sys; print(sys.executable)").Output()
	if err != nil {
		t.Fatal(err)
	}
	// Multicast memory (NVLink SHARP) cannot be moved.
	o := script(env, visible([]gpu{a, b}), fmt.Sprintf("%s -c '%s' >/tmp/0 2>&1", strings.TrimSpace(string(python)), torchProgram),
		"NCCL_NVLS_ENABLE=0", "TORCH_SYMM_MEM_DISABLE_MULTICAST=1")
	o.Image, o.RootfsDir, o.Detach = "", root, true
	c := &counting{env: env, id: env.Run(t, o).ID}
	c.findPrograms(t, "python3", 1)
	c.counts(t)
	usedA, _ := memoryOf(t, a)
	usedB, _ := memoryOf(t, b)
	t.Logf("%d and %d MiB in use", usedA-beforeA, usedB-beforeB)
	for range 3 {
		t.Logf("by hand: suspend %s, resume %s", byHand(t, "suspend", c.pids[0]), byHand(t, "resume", c.pids[0]))
		t.Logf("pause %s, resume %s", c.task(t, "pause"), c.task(t, "resume"))
	}
	c.counts(t)
	c.task(t, "pause")
	for _, g := range []gpu{a, b} {
		used, free := memoryOf(t, g)
		if used > max(beforeA, beforeB)+16 {
			t.Errorf("%d MiB of GPU %s are in use while the container is paused", used, g.Index)
		}
		env.Remove(t, startHold(t, env, g.Index, free-1024))
	}
	t.Logf("exchanged in %s", c.resumeOn(t, a.Index+"="+b.Index, b.Index+"="+a.Index))
	c.counts(t)
	if now, _ := memoryOf(t, b); now < usedA-16 {
		t.Errorf("%d MiB of GPU %s are in use, and %d of the other before", now, b.Index, usedA)
	}
	env.Remove(t, c.id)
}

// overlayOfHost mounts an overlay of this host's root file system, for a container.
func overlayOfHost(t *testing.T) string {
	t.Helper()
	dir := mounts.TempDir(t)
	// What is written goes into a tmpfs: the host's file system may be an overlay itself.
	root, changes := filepath.Join(dir, "root"), filepath.Join(dir, "changes")
	err := errors.Join(os.Mkdir(root, 0o755), os.Mkdir(changes, 0o755), unix.Mount("tmpfs", changes, "tmpfs", 0, ""),
		os.Mkdir(changes+"/upper", 0o755), os.Mkdir(changes+"/work", 0o755),
		unix.Mount("overlay", root, "overlay", 0, fmt.Sprintf("lowerdir=/,upperdir=%[1]s/upper,workdir=%[1]s/work", changes)))
	if err != nil {
		t.Fatal(err)
	}
	return root
}
