package robustness

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simdriver/sim"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simhost"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testenv"
)

const limited = "NVIDIA_GPU_MEMORY_LIMIT=8192"

// newLimitedHost starts a host with driver 615, whose cgroups all count as cgroups with dmem.
func newLimitedHost(t *testing.T, backend string) *host {
	t.Helper()
	h := newHost(t, simhost.Options{Env: testenv.Options{Cgroup: 2}, Driver: sim.Options{GPUs: 3, Version: "615.78.08"}}, true)
	for _, name := range []string{"nvidia-shimctl", "nvidia-shim-nvml"} { // beside the shim
		program, err := os.ReadFile(filepath.Join(testenv.ShimDir(), name))
		if err != nil {
			t.Fatal(err)
		}
		writeFile(t, filepath.Join(filepath.Dir(h.faultFile), "real", name), program, 0o755)
	}
	h.limit(t, sim.MemoryLimits{Backend: backend, File: "cgroup.type"})
	return h
}

func (h *host) limit(t *testing.T, m sim.MemoryLimits) {
	t.Helper()
	if err := h.Driver.LimitMemory(m); err != nil {
		t.Fatal(err)
	}
}

// limits returns the limits of the container and the sums of its ancestors, in MiB.
func (h *host) limits(t *testing.T, id string) (own, above []string) {
	t.Helper()
	list, err := h.Driver.CgroupLimits()
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range list {
		hard := "none"
		if l.Hard != 1<<64-1 {
			hard = fmt.Sprint(l.Hard >> 20)
		}
		text := fmt.Sprintf("%d %s", l.Soft>>20, hard)
		if text == "0 none" {
			continue
		}
		if filepath.Base(l.Cgroup) == id {
			own = append(own, text)
		} else {
			above = append(above, l.Cgroup+" "+text)
		}
	}
	return own, above
}

// nothingLimited fails the test if a limit, a sum or a record is left.
func (h *host) nothingLimited(t *testing.T, when string) {
	t.Helper()
	own, above := h.limits(t, "")
	records, _ := filepath.Glob(filepath.Join(h.Driver.StateDir, "gpu-memory-*.json"))
	if len(own)+len(above)+len(records) > 0 {
		t.Errorf("%s: left are %q %q and the records %q", when, own, above, records)
	}
}

func TestLimitsOfGPUMemory(t *testing.T) {
	for _, backend := range []string{"dmem", "internal"} {
		t.Run(backend, func(t *testing.T) {
			h := newLimitedHost(t, backend)
			id := h.Start(t, simhost.Visible("0,1", limited, "NVIDIA_GPU_MEMORY_REQUEST=1=1Gi,2Gi"))
			want := func(text string, sums bool) {
				t.Helper()
				own, above := h.limits(t, id)
				if strings.Join(own, ", ") != text || (len(above) > 0) != sums {
					t.Errorf("limits %q, above %q; want %s", own, above, text)
				}
			}
			want("2048 8192, 1024 8192", backend == "dmem")
			other := h.Start(t, simhost.Visible("0"))
			if own, _ := h.limits(t, other); len(own) > 0 {
				t.Errorf("another container has %q", own)
			}
			h.Ctl(t, "limit", "--state", h.State, id, "6Gi,1=none")
			want("6144 6144", backend == "dmem")
			out, _ := exec.Command(filepath.Join(testenv.ShimDir(), "nvidia-shimctl"), "--config", h.Driver.ConfigPath, "limit", "--state", h.State, id, "9999Gi").CombinedOutput()
			simhost.Want(t, string(out), "invalid memory limit", "ask for at most the GPU's memory")
			want("6144 6144", backend == "dmem")
			h.Ctl(t, "limit", "--state", h.State, other, "1Gi")
			h.Gone(t, id)
			h.Gone(t, other)
			h.nothingLimited(t, "deleted")
		})
	}
}

func TestLimitsThatAreRefused(t *testing.T) {
	h := newLimitedHost(t, "dmem")
	h.Refused(t, simhost.Visible("0", "NVIDIA_GPU_MEMORY_LIMIT=9999Gi"), `"NVIDIA_GPU_MEMORY_LIMIT" limits GPU memory`, "invalid memory limit", "ask for at most the GPU's memory")
	h.nothingLimited(t, "too much")
	h.limit(t, sim.MemoryLimits{Backend: "dmem", File: "no.such.file"})
	h.Refused(t, simhost.Visible("0", limited), "no controller dmem", "use runc")
	h.nothingLimited(t, "no controller")
	h.MustRun(t, simhost.Visible("0", "NVIDIA_GPU_MEMORY_REQUEST=1024"))
	h.nothingLimited(t, "a request without controller")
	h.limit(t, sim.MemoryLimits{Backend: "dmem", File: "cgroup.type"})
	if err := h.Driver.Faults(sim.Fault{Function: "nvmlDeviceSetMemoryLimits_v1", UUID: h.Driver.GPUs[1].UUID, Code: 999}); err != nil {
		t.Fatal(err)
	}
	h.Refused(t, simhost.Visible("0,1", limited), "GPU 1: set the memory limit")
	h.nothingLimited(t, "the second GPU fails")
}

func TestNoLimitWithAnOlderDriverOrOlderCgroups(t *testing.T) {
	h := newHost(t, simhost.Options{}, false)
	h.Refused(t, simhost.Visible("0", limited), "which driver 580.159.04 cannot: use driver 615 or newer")
	h.MustRun(t, simhost.Visible("0", "NVIDIA_GPU_MEMORY_REQUEST=1024"))
	if testenv.CgroupVersions()[0] != 1 {
		t.Log("NOT TESTED: this host has no cgroup v1")
		return
	}
	h = newHost(t, simhost.Options{Env: testenv.Options{Cgroup: 1}, Driver: sim.Options{GPUs: 2, Version: "615.78.08"}}, false)
	h.Refused(t, simhost.Visible("0", limited), "not a cgroup of version 2", "start the host with cgroup v2")
}

// Nothing is left of a shim that is killed around the limits, nor of a driver that hangs before it
// sets them.
func TestFaultsLeaveNoLimit(t *testing.T) {
	h := newLimitedHost(t, "dmem")
	for _, step := range []string{"memory", "memory-set"} {
		for _, action := range []string{"error", "kill"} {
			h.fault(t, step+"="+action)
			o := simhost.Visible("0", limited)
			o.ID, o.Args = h.NewID(), []string{"/bin/true"}
			if r, err := h.TryRun(t, o); err == nil && r.ExitCode == 0 {
				t.Errorf("%s at %s: the container started", action, step)
			}
			h.fault(t, "")
			h.remove(t, o.ID)
			testenv.Await(t, "nothing is limited after "+step+"="+action, func() bool {
				own, above := h.limits(t, o.ID)
				return len(own)+len(above) == 0
			})
			h.nothingLimited(t, step+"="+action)
		}
	}
	if err := h.Driver.Hang(true); err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	h.Refused(t, simhost.Visible("0", limited), "has not answered within")
	t.Logf("refused after %v", time.Since(start))
	if err := h.Driver.Hang(false); err != nil {
		t.Fatal(err)
	}
	h.MustRun(t, simhost.Visible("0", limited))
	h.nothingLimited(t, "NVML hung")
}

// prepare runs `prepare` in containerd's mount namespace, which alone has cgroups of version 2.
func (h *host) prepare(t *testing.T) {
	t.Helper()
	ctl := filepath.Join(testenv.ShimDir(), "nvidia-shimctl")
	cmd := exec.Command("nsenter", fmt.Sprintf("--mount=/proc/%d/ns/mnt", h.PID()), "--", ctl, "--config", h.Driver.ConfigPath, "prepare")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}

// NVML hangs when a container with a request is deleted, and the kernel keeps what it requested in
// the cgroups above. The next container with a limit makes it good, or `prepare`.
func TestADriverThatHangsAtDeleteLeavesNoSum(t *testing.T) {
	h := newLimitedHost(t, "dmem")
	for what, repair := range map[string]func(){
		"Create":  func() { h.MustRun(t, simhost.Visible("0", limited)) },
		"prepare": func() { h.prepare(t) },
	} {
		id := h.Start(t, simhost.Visible("0,1", limited))
		if err := h.Driver.Hang(true); err != nil {
			t.Fatal(err)
		}
		h.Gone(t, id)
		if err := h.Driver.Hang(false); err != nil {
			t.Fatal(err)
		}
		if own, above := h.limits(t, id); len(above) == 0 {
			t.Errorf("NVML did not hang: %q", own)
		}
		repair()
		h.nothingLimited(t, what)
	}
}
