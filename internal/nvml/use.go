//go:build cgo

package nvml

import (
	"maps"
	"slices"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/probe"
)

// usage is what is kept of a GPU from one observation to the next: the memory of its processes, and
// the time of its latest sample in NVML's clock, 0 if there was none.
type usage struct {
	memory map[int]uint64
	sample uint64
}

// observeUse returns how the GPU was used since the previous observation.
func observeUse(l nvml.Interface, d nvml.Device, before usage) (*probe.GPUUse, usage) {
	r := &reader{library: l}
	u, now := r.use(d, before)
	if r.err != nil { // guard: idle: complete answer
		u.Unknown = r.err.Error()
	}
	return &u, now
}

// use judges the samples of utilization that the driver keeps, some tens from the last ten seconds or
// so. Nothing says how far they reach back, so each answer has to contain the latest sample of the
// answer before: then none is missing between them. A driver need not take samples of an idle GPU.
//
// Accounting does not do: it has whole percents of a process' life.
func (r *reader) use(d nvml.Device, before usage) (u probe.GPUUse, now usage) {
	if r.isMIG(d) { // guard: idle: no MIG
		return probe.GPUUse{Unknown: "it is partitioned by MIG"}, now
	}
	now.memory = map[int]uint64{}
	list, unlisted := r.processes(handle{Device: d})
	for _, p := range list {
		u.Processes = append(u.Processes, p.PID)
		if p.Memory != nil {
			now.memory[p.PID] = *p.Memory
		} else {
			now.memory[p.PID] = 0
		}
	}
	since := max(before.sample, 1) - 1
	samples := found(r, "samples of the utilization", func() ([]nvml.Sample, nvml.Return) {
		_, list, ret := d.GetSamples(nvml.GPU_UTILIZATION_SAMPLES, since)
		return list, ret
	}, "nvmlDeviceGetSamples")
	busy := found(r, "utilization of processes", func() ([]nvml.ProcessUtilizationSample, nvml.Return) {
		return d.GetProcessUtilization(since)
	}, "nvmlDeviceGetProcessUtilization")
	rate := must(r, "utilization", d.GetUtilizationRates, "nvmlDeviceGetUtilizationRates")
	mps := must(r, "clients of MPS", d.GetMPSComputeRunningProcesses, "nvmlDeviceGetMPSComputeRunningProcesses_v3",
		"nvmlDeviceGetMPSComputeRunningProcesses_v2", "nvmlDeviceGetMPSComputeRunningProcesses")
	contains := before.sample > 0 && slices.ContainsFunc(samples, func(s nvml.Sample) bool { return s.TimeStamp == before.sample })
	for _, s := range samples {
		now.sample = max(now.sample, s.TimeStamp)
	}
	switch {
	case len(mps) > 0: // guard: idle: no MPS
		u.Unknown = "it is used through MPS"
	case unlisted != "": // guard: idle: processes listed
		u.Unknown = "NVML does not list its " + unlisted
	case before.memory == nil:
		u.Unknown = "it was not observed before"
	case !contains: // guard: idle: no gap between samples
		u.Unknown = "NVML has no samples of its utilization since the previous observation"
	}
	worked := slices.ContainsFunc(samples, func(s nvml.Sample) bool { return s.SampleValue != [8]byte{} }) ||
		slices.ContainsFunc(busy, func(s nvml.ProcessUtilizationSample) bool { return s.SmUtil|s.MemUtil|s.EncUtil|s.DecUtil != 0 })
	u.Busy = worked || rate.Gpu > 0 || !maps.Equal(now.memory, before.memory) // guard: idle: work of the GPU
	return u, now
}

// found is like must for a list; NVML reports an empty one as an error.
func found[T any](r *reader, what string, fn func() ([]T, nvml.Return), symbol string) []T {
	return must(r, what, func() ([]T, nvml.Return) {
		list, ret := fn()
		if ret == nvml.ERROR_NOT_FOUND {
			return nil, nvml.SUCCESS
		}
		return list, ret
	}, symbol)
}
