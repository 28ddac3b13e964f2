//go:build cgo

package nvml

import "github.com/NVIDIA/go-nvml/pkg/nvml"

// state reads what a GPU does.
func (r *reader) state(d gpu, g *GPU) {
	s := &State{Processes: []Process{}}
	g.State = s
	s.Power = as(get(r, "power", "nvmlDeviceGetPowerUsage", d.GetPowerUsage), watts)
	s.PowerLimit = as(get(r, "power limit", "nvmlDeviceGetEnforcedPowerLimit", d.GetEnforcedPowerLimit), watts)
	s.Temperature = get(r, "temperature", "nvmlDeviceGetTemperature", func() (uint32, nvml.Return) { return d.GetTemperature(nvml.TEMPERATURE_GPU) })
	if u := get(r, "utilization", "nvmlDeviceGetUtilizationRates", d.GetUtilizationRates); u != nil {
		s.Utilization.GPU, s.Utilization.Memory = &u.Gpu, &u.Memory
	}
	percent := func(what, symbol string, fn func() (uint32, uint32, nvml.Return)) *uint32 {
		return get(r, what, symbol, func() (uint32, nvml.Return) {
			v, _, ret := fn()
			return v, ret
		})
	}
	s.Utilization.Encoder = percent("use of the encoder", "nvmlDeviceGetEncoderUtilization", d.GetEncoderUtilization)
	s.Utilization.Decoder = percent("use of the decoder", "nvmlDeviceGetDecoderUtilization", d.GetDecoderUtilization)
	s.Memory.Total, s.Memory.Used = r.memory(d)
	r.ecc(d, &s.ECC)
	clock := func(what string, kind nvml.ClockType) *uint32 {
		return get(r, what, "nvmlDeviceGetClockInfo", func() (uint32, nvml.Return) { return d.GetClockInfo(kind) })
	}
	s.Clocks = Clocks{SM: clock("SM clock", nvml.CLOCK_SM), Memory: clock("memory clock", nvml.CLOCK_MEM)}
	s.BAR1Used = as(get(r, "BAR1 memory", "nvmlDeviceGetBAR1MemoryInfo", d.GetBAR1MemoryInfo), func(b nvml.BAR1Memory) uint64 { return b.Bar1Used })
	traffic := func(what string, counter nvml.PcieUtilCounter) *uint64 {
		kilobytes := get(r, what, "nvmlDeviceGetPcieThroughput", func() (uint32, nvml.Return) { return d.GetPcieThroughput(counter) })
		return as(kilobytes, func(n uint32) uint64 { return uint64(n) * 1000 })
	}
	s.PCIe = Throughput{RX: traffic("PCIe throughput", nvml.PCIE_UTIL_RX_BYTES), TX: traffic("PCIe throughput", nvml.PCIE_UTIL_TX_BYTES)}
	if !g.Facts.MIG {
		s.Processes = r.processes(d)
		return
	}
	r.instanceStates(d, g)
}

// instanceStates reads the states of a GPU's MIG devices.
func (r *reader) instanceStates(d gpu, g *GPU) {
	if r.err != nil {
		return
	}
	migs, err := r.migDevices(d)
	r.err = err
	for _, in := range g.Facts.Instances {
		s := InstanceState{Processes: []Process{}}
		for _, m := range migs {
			if m.index == in.Index {
				s.Memory.Total, s.Memory.Used = r.memory(m)
				s.Processes = r.processes(m)
			}
		}
		g.Instances = append(g.Instances, s)
	}
}

// ecc reads the errors that were counted since the driver was loaded.
func (r *reader) ecc(d gpu, e *ECCErrors) {
	total := func(kind nvml.MemoryErrorType) *uint64 {
		return get(r, "ECC errors", "nvmlDeviceGetTotalEccErrors", func() (uint64, nvml.Return) {
			return d.GetTotalEccErrors(kind, nvml.VOLATILE_ECC)
		})
	}
	at := func(location nvml.MemoryLocation) *uint64 {
		return get(r, "ECC errors", "nvmlDeviceGetMemoryErrorCounter", func() (uint64, nvml.Return) {
			return d.GetMemoryErrorCounter(nvml.MEMORY_ERROR_TYPE_UNCORRECTED, nvml.VOLATILE_ECC, location)
		})
	}
	e.Corrected, e.Uncorrected = total(nvml.MEMORY_ERROR_TYPE_CORRECTED), total(nvml.MEMORY_ERROR_TYPE_UNCORRECTED)
	e.L1, e.L2, e.Memory = at(nvml.MEMORY_LOCATION_L1_CACHE), at(nvml.MEMORY_LOCATION_L2_CACHE), at(nvml.MEMORY_LOCATION_DEVICE_MEMORY)
}

// processes lists those that compute and those that draw; one can do both.
func (r *reader) processes(d nvml.Device) []Process {
	list := []Process{}
	add := func(kind, what string, symbols []string, fn func() ([]nvml.ProcessInfo, nvml.Return)) {
		if r.err != nil {
			return
		}
		var infos *[]nvml.ProcessInfo
		if infos, r.err = maybe(r.library, what, symbols, fn); infos == nil {
			return
		}
	next:
		for _, in := range *infos {
			p := Process{PID: int(in.Pid), Type: kind}
			// NVML_VALUE_NOT_AVAILABLE
			if in.UsedGpuMemory != ^uint64(0) {
				p.Memory = &in.UsedGpuMemory
			}
			for i := range list {
				if list[i].PID == p.PID {
					if list[i].Type != kind {
						list[i].Type = "C+G"
					}
					continue next
				}
			}
			list = append(list, p)
		}
	}
	versions := func(name string) []string { return []string{name + "_v3", name + "_v2", name} }
	add("C", "computing processes", versions("nvmlDeviceGetComputeRunningProcesses"), d.GetComputeRunningProcesses)
	add("G", "drawing processes", versions("nvmlDeviceGetGraphicsRunningProcesses"), d.GetGraphicsRunningProcesses)
	return list
}
