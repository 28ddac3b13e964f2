//go:build cgo

package nvml

import (
	"math"
	"slices"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// useOf returns what cgroups use of the GPU, in bytes, by their directory, where the driver counts it.
func (r *reader) useOf(d handle, cgroups []string) map[string]uint64 {
	use := map[string]uint64{}
	if r.err != nil || r.library.Extensions().LookupSymbol("nvmlDeviceGetMemoryLimits_v1") != nil {
		return use
	}
	for _, dir := range cgroups {
		if now, ret := d.GetMemoryLimits_v1(dir); ret == nvml.SUCCESS { // it may be gone
			use[dir] = now.CurrentUsed
		}
	}
	return use
}

func (r *reader) state(d handle) State {
	s := State{Memory: r.memory(d)}
	s.Processes, s.unlisted = r.processes(d)
	return s
}

func (r *reader) sensors(d handle) (s Sensors) {
	if v, ok := get(r, "temperature", func() (uint32, nvml.Return) { return d.GetTemperature(nvml.TEMPERATURE_GPU) }, "nvmlDeviceGetTemperature"); ok {
		s.Temperature = &v
	}
	if v, ok := get(r, "power", d.GetPowerUsage, "nvmlDeviceGetPowerUsage"); ok {
		s.Power = &v
	}
	if v, ok := get(r, "power limit", d.GetEnforcedPowerLimit, "nvmlDeviceGetEnforcedPowerLimit"); ok {
		s.PowerLimit = &v
	}
	errors := func(kind nvml.MemoryErrorType) *uint64 {
		v, ok := get(r, "ECC errors", func() (uint64, nvml.Return) { return d.GetTotalEccErrors(kind, nvml.VOLATILE_ECC) }, "nvmlDeviceGetTotalEccErrors")
		if !ok {
			return nil
		}
		return &v
	}
	s.Corrected, s.Uncorrected = errors(nvml.MEMORY_ERROR_TYPE_CORRECTED), errors(nvml.MEMORY_ERROR_TYPE_UNCORRECTED)
	return s
}

// sampled is how far back NVML is asked for samples of utilization.
const sampled = 5 * time.Second

// utilize adds to each process the latest sample of its utilization. Without a sample, but with one
// of another process, it is 0; without any sample NVML reports NVML_ERROR_NOT_FOUND, also if nothing
// was busy.
func (r *reader) utilize(d handle, list []Process) {
	if len(list) == 0 {
		return
	}
	since := uint64(time.Now().Add(-sampled).UnixMicro())
	samples, ok := get(r, "utilization of processes", func() ([]nvml.ProcessUtilizationSample, nvml.Return) {
		return d.GetProcessUtilization(since)
	}, "nvmlDeviceGetProcessUtilization")
	if !ok {
		return
	}
	latest := map[int]nvml.ProcessUtilizationSample{}
	for _, s := range samples {
		if pid := int(s.Pid); s.TimeStamp >= latest[pid].TimeStamp {
			latest[pid] = s
		}
	}
	for i, p := range list {
		percent := min(latest[p.PID].SmUtil, 100)
		list[i].Utilization = &percent
	}
}

// memory returns the memory of a GPU. As in nvidia-smi, the driver's own memory does not count as
// used, if the driver is new enough to report it.
func (r *reader) memory(d handle) MemoryState {
	if m, ok := get(r, "memory", d.GetMemoryInfo_v2, "nvmlDeviceGetMemoryInfo_v2"); ok {
		return MemoryState{Total: &m.Total, Used: &m.Used, Free: &m.Free}
	}
	if m, ok := get(r, "memory", d.GetMemoryInfo, "nvmlDeviceGetMemoryInfo"); ok {
		return MemoryState{Total: &m.Total, Used: &m.Used, Free: &m.Free}
	}
	return MemoryState{}
}

// processes lists the processes that use a GPU for computing, for graphics or for both. unlisted
// says which of them NVML does not list, if any.
func (r *reader) processes(d handle) (list []Process, unlisted string) {
	list = []Process{}
	for _, kind := range []struct {
		name, what, symbol string
		fn                 func() ([]nvml.ProcessInfo, nvml.Return)
	}{
		{"C", "compute processes", "nvmlDeviceGetComputeRunningProcesses", d.GetComputeRunningProcesses},
		{"G", "graphics processes", "nvmlDeviceGetGraphicsRunningProcesses", d.GetGraphicsRunningProcesses},
	} {
		infos, ok := get(r, kind.what, kind.fn, kind.symbol+"_v3", kind.symbol+"_v2", kind.symbol)
		if !ok {
			unlisted = kind.what
		}
		for _, in := range infos {
			i := slices.IndexFunc(list, func(p Process) bool { return p.PID == int(in.Pid) })
			if i >= 0 {
				if list[i].Type != kind.name {
					list[i].Type = "C+G"
				}
				continue
			}
			p := Process{PID: int(in.Pid), Type: kind.name}
			if in.UsedGpuMemory != math.MaxUint64 { // NVML_VALUE_NOT_AVAILABLE
				p.Memory = &in.UsedGpuMemory
			}
			list = append(list, p)
		}
	}
	return list, unlisted
}
