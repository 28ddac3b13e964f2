//go:build gpu

package gpu

import (
	"encoding/json"
	"fmt"
	"math"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testenv"
)

// status is what the tests look at in `nvidia-shimctl status`.
type status struct {
	DriverVersion string `json:"driver_version"`
	CUDAVersion   string `json:"cuda_version"`
	NVMLError     string `json:"nvml_error"`
	GPUs          []struct {
		Index, Minor            int
		UUID, PCI, Model, Error string
		Power                   *float64 `json:"power_watts"`
		PowerLimit              *float64 `json:"power_limit_watts"`
		Temperature             *float64 `json:"temperature_celsius"`
		Memory                  memoryState
		Clocks                  clocks
		Processes               []struct {
			PID             int
			Memory          *uint64 `json:"memory_bytes"`
			Name, Container string
		}
		Containers []string
	}
	Containers []struct {
		ID, Namespace string
		PID           int
		GPUs          []string
		Memory        *uint64 `json:"memory_bytes"`
		Processes     *int
	}
}

type memoryState struct {
	Total *uint64 `json:"total_bytes"`
	Used  *uint64 `json:"used_bytes"`
}

type clocks struct {
	SM     *float64 `json:"sm_mhz"`
	Memory *float64 `json:"memory_mhz"`
}

// number is one of nvidia-smi's, NaN for what the GPU does not have.
func number(s string) float64 {
	f, err := strconv.ParseFloat(strings.TrimSpace(s), 64)
	if err != nil {
		return math.NaN()
	}
	return f
}

// between compares a value with what nvidia-smi said before and after it, within a
// tolerance: both ask the same library at different moments.
func between(t *testing.T, what string, got *float64, before, after string, tolerance float64) {
	t.Helper()
	b, a := number(before), number(after)
	if math.IsNaN(b) || math.IsNaN(a) {
		if got != nil {
			t.Logf("%s: %v, and nvidia-smi says %s and %s", what, *got, before, after)
		}
		return
	}
	if got == nil {
		t.Errorf("%s is absent, and nvidia-smi says %s", what, before)
		return
	}
	if *got < min(b, a)-tolerance || *got > max(b, a)+tolerance {
		t.Errorf("%s: %v, and nvidia-smi says %s before and %s after", what, *got, before, after)
	}
}

// mib is a number of bytes as nvidia-smi writes it.
func mib(bytes *uint64) *float64 {
	if bytes == nil {
		return nil
	}
	v := math.Floor(float64(*bytes) / (1 << 20))
	return &v
}

// What NVML says by way of info is what nvidia-smi says.
func TestInfoHasWhatNvidiaSmiSaysOfTheGPUs(t *testing.T) {
	env := newEnv(t, "")
	f := facts(t)
	var info struct {
		CUDAVersion string `json:"cuda_version"`
		NVMLError   string `json:"nvml_error"`
		GPUs        []struct {
			UUID string
			NVML *struct {
				Brand, Arch, Error string
				MIG                bool
				PowerLimit         *float64 `json:"power_limit_watts"`
				Persistence        *bool
				PCIe               struct{ Generation, Width *float64 }
				Clocks             clocks `json:"max_clocks"`
				Memory             struct {
					Total *uint64 `json:"total_bytes"`
					ECC   *bool
				}
			}
		}
	}
	ctlJSON(t, env, &info, "info")
	if info.CUDAVersion != f.cuda || info.NVMLError != "" {
		t.Errorf("info says CUDA %s and error %q", info.CUDAVersion, info.NVMLError)
	}
	rows := smi(t, "gpu", "uuid", "compute_cap", "memory.total", "enforced.power.limit", "clocks.max.sm", "clocks.max.mem",
		"pcie.link.gen.max", "pcie.link.width.max", "persistence_mode", "ecc.mode.current")
	if len(rows) != len(info.GPUs) {
		t.Fatalf("info has %d GPUs, nvidia-smi %d", len(info.GPUs), len(rows))
	}
	for i, row := range rows {
		n := info.GPUs[i].NVML
		if info.GPUs[i].UUID != row["uuid"] || n == nil || n.Error != "" {
			t.Errorf("GPU %d: info says %+v, nvidia-smi %v", i, info.GPUs[i], row)
			continue
		}
		if n.Arch != row["compute_cap"] || i == 0 && n.Brand != f.brand {
			t.Errorf("GPU %d: info says architecture %s and brand %s, nvidia-smi %s and %s", i, n.Arch, n.Brand, row["compute_cap"], f.brand)
		}
		exact := func(what string, got *float64, field string) {
			t.Helper()
			between(t, fmt.Sprintf("GPU %d: %s", i, what), got, row[field], row[field], 0.5)
		}
		exact("memory in MiB", mib(n.Memory.Total), "memory.total")
		exact("power limit", n.PowerLimit, "enforced.power.limit")
		exact("largest SM clock", n.Clocks.SM, "clocks.max.sm")
		exact("largest memory clock", n.Clocks.Memory, "clocks.max.mem")
		exact("PCIe generation", n.PCIe.Generation, "pcie.link.gen.max")
		exact("PCIe width", n.PCIe.Width, "pcie.link.width.max")
		for field, got := range map[string]*bool{"persistence_mode": n.Persistence, "ecc.mode.current": n.Memory.ECC} {
			if smi := row[field]; (smi == "Enabled" || smi == "Disabled") && (got == nil || *got != (smi == "Enabled")) {
				t.Errorf("GPU %d: info and nvidia-smi (%s) differ in %s", i, smi, field)
			}
		}
	}
	t.Log(rows)
}

// A container on each GPU holds memory: status names container, GPU, process and the
// memory that nvidia-smi says.
func TestStatusShowsWhoHasWhichGPU(t *testing.T) {
	const held = 512
	gpus := hostGPUs(t)
	env := newEnv(t, "")
	ids := map[string]string{} // by UUID
	for _, g := range gpus {
		ids[g.UUID] = startHold(t, env, g.Index, held)
	}
	fields := []string{"uuid", "memory.used", "power.draw", "enforced.power.limit", "temperature.gpu", "clocks.max.sm", "clocks.max.mem", "driver_version"}
	before := smi(t, "gpu", fields...)
	var s status
	ctlJSON(t, env, &s, "status")
	after := smi(t, "gpu", fields...)
	apps := smi(t, "compute-apps", "gpu_uuid", "pid", "used_memory")
	t.Logf("nvidia-smi: %v\n%v\nstatus: %s", before, apps, ctl(t, env, "status").out)

	if s.NVMLError != "" || s.DriverVersion != before[0]["driver_version"] || s.CUDAVersion != smiText(t, `CUDA (?:UMD )?Version\s*:\s*([0-9.]+)`) {
		t.Errorf("status says driver %s, CUDA %s, error %q", s.DriverVersion, s.CUDAVersion, s.NVMLError)
	}
	if len(s.GPUs) != len(gpus) {
		t.Fatalf("status has %d GPUs, nvidia-smi %d", len(s.GPUs), len(gpus))
	}
	shown := true
	for i, g := range gpus {
		is := s.GPUs[i]
		id := ids[g.UUID]
		name := "GPU " + g.Index
		if fmt.Sprintf("%d %d %s %s", is.Index, is.Minor, is.UUID, is.PCI) != strings.Join([]string{g.Index, g.Minor, g.UUID, g.Bus}, " ") || is.Error != "" {
			t.Errorf("%s of nvidia-smi %+v is %+v in status", name, g, is)
			continue
		}
		between(t, name+": used memory in MiB", mib(is.Memory.Used), before[i]["memory.used"], after[i]["memory.used"], 64)
		between(t, name+": power limit", is.PowerLimit, before[i]["enforced.power.limit"], after[i]["enforced.power.limit"], 0.5)
		// A GPU's power and clocks change within a moment.
		between(t, name+": power", is.Power, before[i]["power.draw"], after[i]["power.draw"], 100)
		between(t, name+": temperature", is.Temperature, before[i]["temperature.gpu"], after[i]["temperature.gpu"], 5)
		between(t, name+": SM clock", is.Clocks.SM, "0", after[i]["clocks.max.sm"], 0)
		between(t, name+": memory clock", is.Clocks.Memory, "0", after[i]["clocks.max.mem"], 0)

		if !slices.Equal(is.Containers, []string{id}) {
			t.Errorf("%s: containers %v, want %s alone", name, is.Containers, id)
		}
		used := usedBy(t, env, id, g, apps)
		if used == "" {
			shown = false
			t.Logf("nvidia-smi ON THIS HOST DOES NOT LIST the process of container %s, so its memory cannot be compared", id)
		}
		seen := false
		for _, c := range s.Containers {
			if c.ID != id {
				continue
			}
			seen = true
			if c.Namespace != env.ID || !slices.Equal(c.GPUs, []string{g.UUID}) {
				t.Errorf("container %s: %+v", id, c)
			}
			if used == "" {
				continue
			}
			between(t, "container "+id+": memory in MiB", mib(c.Memory), used, used, 2)
			if c.Memory == nil || *c.Memory < held<<20 || c.Processes == nil || *c.Processes != 1 {
				t.Errorf("container %s holds %d MiB by one process: %+v", id, held, c)
			}
		}
		if !seen {
			t.Errorf("container %s is not among %+v", id, s.Containers)
		}
		// The same processes, each with the same memory.
		for _, app := range apps {
			if app["gpu_uuid"] != g.UUID {
				continue
			}
			found := false
			for _, p := range is.Processes {
				if fmt.Sprint(p.PID) == app["pid"] {
					found = true
					between(t, name+": memory of process "+app["pid"], mib(p.Memory), app["used_memory"], app["used_memory"], 2)
				}
			}
			if !found {
				t.Errorf("%s: nvidia-smi lists process %s, status lists %+v", name, app["pid"], is.Processes)
			}
		}
	}
	watchStatus(t, env, ids[gpus[0].UUID])
	for _, id := range ids {
		env.Remove(t, id)
	}
	var none status
	ctlJSON(t, env, &none, "status")
	for _, c := range none.Containers {
		if c.Namespace == env.ID {
			t.Errorf("status still lists %+v", c)
		}
	}
	if !shown && !t.Failed() {
		t.Skip("NOT SHOWN: how much of a GPU's memory a container has, for nvidia-smi does not say it on this host")
	}
}

// usedBy is how many MiB nvidia-smi says that a container's process has on a GPU,
// empty where it lists none of the container's processes.
func usedBy(t *testing.T, env *testenv.Env, id string, g gpu, apps []map[string]string) string {
	t.Helper()
	pids := containerPIDs(t, env, id)
	for _, app := range apps {
		pid, err := strconv.Atoi(app["pid"])
		if err == nil && app["gpu_uuid"] == g.UUID && slices.Contains(pids, pid) {
			if math.IsNaN(number(app["used_memory"])) {
				return ""
			}
			return app["used_memory"]
		}
	}
	return ""
}

// watchStatus reads two looks of status --watch, which has one line of JSON for each.
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
		var s status
		if err := d.Decode(&s); err != nil {
			t.Fatalf("status --watch: %v", err)
		}
		if len(s.GPUs) == 0 || !slices.Contains(s.GPUs[0].Containers, id) {
			t.Errorf("status --watch does not have container %s: %+v", id, s.GPUs)
		}
	}
}
