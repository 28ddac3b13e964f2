package robustness

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simdriver/sim"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simhost"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testenv"
)

// soakLimits says how many containers TestManyFaultsLeaveNoLimit makes; one for each fault by default.
const soakLimits = "NVIDIA_SHIM_SOAK_LIMITS"

// limitFault is what goes wrong with a container that has limits.
type limitFault struct {
	name string
	// point is a step of the shim with what happens there.
	point string
	// change is true if the limit is changed.
	change bool
	// kill is true if the shim is killed at a random moment.
	kill bool
	// creating and deleting are the faults of the driver.
	creating, deleting []sim.Fault
}

// limitFaults are faults at and between all steps.
func (h *host) limitFaults() (list []limitFault) {
	for _, step := range []string{"create", "mask", "memory", "memory-set", "limit-changed", "take-back", "memory-cleared", "taken-back"} {
		for _, action := range []string{"error", "kill"} {
			list = append(list, limitFault{name: step + "=" + action, point: step + "=" + action, change: step == "limit-changed"})
		}
	}
	const set, get = "nvmlDeviceSetMemoryLimits_v1", "nvmlDeviceGetMemoryLimits_v1"
	fault := func(function string, code int, gpus ...int) (list []sim.Fault) {
		for _, i := range gpus {
			list = append(list, sim.Fault{Function: function, UUID: h.Driver.GPUs[i].UUID, Code: code})
		}
		return list
	}
	return append(list,
		limitFault{name: "killed", kill: true},
		limitFault{name: "not set", creating: fault(set, 999, 1)},
		limitFault{name: "not read back", creating: fault(get, 3, 1)},
		limitFault{name: "not taken back", deleting: fault(set, 999, 0, 1)},
		limitFault{name: "one is not taken back", deleting: fault(set, 15, 1)},
		limitFault{name: "neither restored nor taken back", creating: fault(set, 999, 1), deleting: fault(set, 999, 0, 1)},
		limitFault{name: "killed, and not taken back", kill: true, deleting: fault(set, 999, 0, 1)},
	)
}

// withFault runs a container with limits to its end.
func (h *host) withFault(t *testing.T, f limitFault, wait time.Duration) {
	t.Helper()
	driver := func(faults []sim.Fault) {
		if err := h.Driver.Faults(faults...); err != nil {
			t.Fatal(err)
		}
	}
	h.fault(t, f.point)
	driver(f.creating)
	o := simhost.Visible("0,1", limited)
	o.ID, o.Detach, o.Args = h.NewID(), true, []string{"/bin/sleep", "600"}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, _ = h.TryRun(t, o)
	}()
	if f.kill {
		testenv.Await(t, "there is a shim", func() bool { return len(h.ShimPIDs(o.ID)) > 0 })
		time.Sleep(wait)
		kill(t, unix.SIGKILL, h.ShimPIDs(o.ID)...)
	}
	<-ended
	if f.change {
		_, _ = testenv.Output(time.Minute, exec.Command(filepath.Join(testenv.ShimDir(), "nvidia-shimctl"), "--config", h.Driver.ConfigPath, "limit", "--state", h.State, o.ID, "6Gi,1=9Gi"))
	}
	h.fault(t, "")
	driver(f.deleting)
	if f.kill {
		// `start` may just have started one that containerd does not know. A `delete` that is killed
		// leaves the container until containerd is restarted.
		for _, pid := range h.ShimPIDs(o.ID) {
			if argv, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)); !bytes.HasSuffix(argv, []byte("\x00delete\x00")) {
				kill(t, unix.SIGKILL, pid)
			}
		}
	}
	h.remove(t, o.ID)
	driver(nil)
	testenv.Await(t, "the processes of a runc that was killed end", func() bool {
		left, _ := filepath.Glob("/sys/fs/cgroup/*/" + h.ID + "/" + o.ID)
		return !slices.ContainsFunc(left, func(dir string) bool { return os.Remove(dir) != nil })
	})
}

// After each fault, or when the next container with a limit or `prepare` has made it good, no cgroup
// has a limit or a sum of requests.
func TestManyFaultsLeaveNoLimit(t *testing.T) {
	h := newLimitedHost(t, "dmem")
	faults := h.limitFaults()
	cycles := len(faults)
	if n, err := strconv.Atoi(os.Getenv(soakLimits)); err == nil {
		cycles = n
	}
	seed := uint64(time.Now().UnixNano())
	random := rand.New(rand.NewPCG(seed, 0))
	good := map[string]int{}
	for i := range cycles {
		f := faults[i%len(faults)]
		wait := time.Duration(random.IntN(250)) * time.Millisecond
		h.withFault(t, f, wait)
		if records, _ := filepath.Glob(filepath.Join(h.Driver.StateDir, "gpu-memory-*.json")); len(records) > 0 {
			good[f.name]++
			if random.IntN(2) == 0 {
				h.prepare(t)
			} else {
				h.MustRun(t, simhost.Visible("0", limited))
			}
		}
		h.nothingLimited(t, f.name)
		if t.Failed() {
			t.Fatalf("cycle %d, seed %d, %s, killed after %v", i, seed, f.name, wait)
		}
	}
	t.Logf("%d containers (seed %d); made good later: %v", cycles, seed, good)
}
