//go:build gpu

package gpu

import (
	"encoding/json"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testenv"
)

// hostStatus is what the tests look at in `nvidia-shimctl status`.
type hostStatus struct {
	DriverVersion string `json:"driver_version"`
	NVMLError     string `json:"nvml_error"`
	GPUs          []struct {
		Index, Minor     int
		UUID, PCI, Error string
		Memory           struct {
			Used *uint64 `json:"used_bytes"`
		}
		Containers []string
	}
	Containers []struct {
		ID, Namespace string
		GPUs          []string
		Memory        *uint64 `json:"memory_bytes"`
		Processes     *int
	}
}

// number is one of nvidia-smi's; false for what the GPU does not have.
func number(s string) (float64, bool) {
	f, err := strconv.ParseFloat(strings.TrimSpace(s), 64)
	return f, err == nil
}

// A container on each GPU holds memory: status names container, GPU and the memory that
// nvidia-smi shows.
func TestStatusShowsWhoHasWhichGPU(t *testing.T) {
	const held = 512
	gpus := hostGPUs(t)
	env := newEnv(t, "")
	ids := map[string]string{} // by UUID
	for _, g := range gpus {
		ids[g.UUID] = startHold(t, env, g.Index, held)
	}
	before := smi(t, "gpu", "memory.used", "driver_version")
	var s hostStatus
	ctlJSON(t, env, &s, "status")
	apps := smi(t, "compute-apps", "gpu_uuid", "pid", "used_memory")
	t.Logf("nvidia-smi: %v\n%v\nstatus: %s", before, apps, ctl(t, env, "status").Output)
	if s.NVMLError != "" || s.DriverVersion != before[0]["driver_version"] || len(s.GPUs) != len(gpus) {
		t.Fatalf("status has driver %s, %d GPUs, error %q", s.DriverVersion, len(s.GPUs), s.NVMLError)
	}
	for i, g := range gpus {
		is, id := s.GPUs[i], ids[g.UUID]
		if fmt.Sprintf("%d %d %s %s", is.Index, is.Minor, is.UUID, is.PCI) != strings.Join([]string{g.Index, g.Minor, g.UUID, g.Bus}, " ") || is.Error != "" {
			t.Errorf("GPU %s of nvidia-smi %+v is %+v in status", g.Index, g, is)
		}
		if want, ok := number(before[i]["memory.used"]); ok && (is.Memory.Used == nil || max(want-64, 0) > float64(*is.Memory.Used>>20) || float64(*is.Memory.Used>>20) > want+64) {
			t.Errorf("GPU %s: used memory %+v, nvidia-smi %v MiB", g.Index, is.Memory, want)
		}
		if !slices.Equal(is.Containers, []string{id}) {
			t.Errorf("GPU %s: containers %v, want %s alone", g.Index, is.Containers, id)
		}
		checkContainer(t, env, s, g, id, held, apps)
	}
	watchStatus(t, env, ids[gpus[0].UUID])
	for _, id := range ids {
		env.Remove(t, id)
	}
	var none hostStatus
	ctlJSON(t, env, &none, "status")
	for _, c := range none.Containers {
		if c.Namespace == env.ID {
			t.Errorf("status still lists %+v", c)
		}
	}
}

// checkContainer compares a container of a status with nvidia-smi's list of processes,
// which some hosts keep empty.
func checkContainer(t *testing.T, env *testenv.Env, s hostStatus, g gpu, id string, held uint64, apps []map[string]string) {
	t.Helper()
	pids := env.PIDs(t, id)
	listed := slices.ContainsFunc(apps, func(app map[string]string) bool {
		pid, err := strconv.Atoi(app["pid"])
		_, known := number(app["used_memory"])
		return err == nil && known && app["gpu_uuid"] == g.UUID && slices.Contains(pids, pid)
	})
	if !listed {
		t.Logf("nvidia-smi ON THIS HOST DOES NOT LIST the process of container %s, so its memory is not compared", id)
	}
	for _, c := range s.Containers {
		if c.ID != id {
			continue
		}
		if c.Namespace != env.ID || !slices.Equal(c.GPUs, []string{g.UUID}) {
			t.Errorf("container %s: %+v", id, c)
		}
		if listed && (c.Memory == nil || *c.Memory < held<<20 || c.Processes == nil || *c.Processes != 1) {
			t.Errorf("container %s holds %d MiB by one process: %+v", id, held, c)
		}
		return
	}
	t.Errorf("container %s is not among %+v", id, s.Containers)
}

// watchStatus reads two states of status --watch, which has one line of JSON for each.
func watchStatus(t *testing.T, env *testenv.Env, id string) {
	t.Helper()
	cmd := exec.Command(filepath.Join(testenv.ShimDir(), "nvidia-shimctl"), "--config", env.Options.ShimConfig, "--json", "status", "--watch", "--interval", "200ms")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}()
	d := json.NewDecoder(out)
	for range 2 {
		var s hostStatus
		if err := d.Decode(&s); err != nil {
			t.Fatalf("status --watch: %v", err)
		}
		if len(s.GPUs) == 0 || !slices.Contains(s.GPUs[0].Containers, id) {
			t.Errorf("status --watch does not have container %s: %+v", id, s.GPUs)
		}
	}
}
