//go:build cgo

package nvml

import (
	"fmt"
	"math/bits"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
)

// Infos asks NVML what the GPUs of this host are. The process can start no program
// afterwards.
func Infos(host config.Host) (Snapshot, error) {
	return ask(host, func(l *library) (Snapshot, error) { return l.snapshot((*reader).info) })
}

// States asks NVML what the GPUs of this host do now. The process can start no program
// afterwards.
func States(host config.Host) (Snapshot, error) {
	return ask(host, func(l *library) (Snapshot, error) { return l.snapshot((*reader).state) })
}

func (l *library) snapshot(read func(*reader, gpu, *GPU)) (s Snapshot, err error) {
	if s.Driver, err = call(l, "driver version", []string{"nvmlSystemGetDriverVersion"}, l.SystemGetDriverVersion); err != nil {
		return s, err
	}
	if s.CUDA, err = l.cudaVersion(); err != nil {
		return s, err
	}
	devices, lost, err := l.devices()
	if err != nil {
		return s, err
	}
	if len(devices) == 0 && lost != nil {
		return s, lost
	}
	if lost != nil {
		s.Error = lost.Error()
	}
	s.GPUs = []GPU{}
	for _, d := range devices {
		g := GPU{}
		r := &reader{library: l, all: devices}
		g.Facts, r.err = l.gpuFacts(d)
		read(r, d, &g)
		if r.err != nil {
			g.Error = r.err.Error()
		}
		s.GPUs = append(s.GPUs, g)
	}
	// Only here is every GPU's address known.
	for i := range s.GPUs {
		if info := s.GPUs[i].Info; info != nil {
			info.nameLinks(s.GPUs)
		}
	}
	return s, nil
}

// nameLinks completes the links, which have the index, by what they lead to.
func (info *Info) nameLinks(gpus []GPU) {
	for k := range info.Links {
		for _, g := range gpus {
			if g.Facts.Index == info.Links[k].Index {
				info.Links[k].UUID, info.Links[k].PCI = g.Facts.UUID, g.Facts.BusID
			}
		}
	}
}

// reader asks for one GPU's properties until one fails for another reason than that
// the GPU has not got it.
type reader struct {
	*library
	all []gpu
	err error
}

// get is nil where the property does not exist, or something failed before.
func get[T any](r *reader, what, symbol string, fn func() (T, nvml.Return)) *T {
	if r.err != nil {
		return nil
	}
	v, err := maybe(r.library, what, []string{symbol}, fn)
	r.err = err
	return v
}

// as converts what NVML has to what the snapshot has.
func as[T, F any](v *F, convert func(F) T) *T {
	if v == nil {
		return nil
	}
	out := convert(*v)
	return &out
}

func watts(milli uint32) float64 { return float64(milli) / 1000 }

func (r *reader) info(d gpu, g *GPU) {
	info := &Info{}
	g.Info = info
	if arch := get(r, "architecture", "nvmlDeviceGetArchitecture", d.GetArchitecture); arch != nil {
		if name, ok := families[uint32(*arch)]; ok {
			info.Family = &name
		}
	}
	info.Cores = get(r, "number of cores", "nvmlDeviceGetNumGpuCores", d.GetNumGpuCores)
	info.PowerLimit = as(get(r, "power limit", "nvmlDeviceGetEnforcedPowerLimit", d.GetEnforcedPowerLimit), watts)
	info.CPUs = as(get(r, "CPU affinity", "nvmlDeviceGetCpuAffinity", func() ([]uint, nvml.Return) { return d.GetCpuAffinity(maxCPUs) }), cpuList)
	info.Persistence = as(get(r, "persistence mode", "nvmlDeviceGetPersistenceMode", d.GetPersistenceMode), enabled)
	info.PCI.Generation = get(r, "PCIe generation", "nvmlDeviceGetMaxPcieLinkGeneration", d.GetMaxPcieLinkGeneration)
	info.PCI.Width = get(r, "PCIe width", "nvmlDeviceGetMaxPcieLinkWidth", d.GetMaxPcieLinkWidth)
	if p := &info.PCI; p.Generation != nil && p.Width != nil && lanes[*p.Generation] > 0 {
		p.Bandwidth = as(p.Width, func(n int) uint64 { return lanes[*p.Generation] * uint64(n) })
	}
	bar1 := get(r, "BAR1 memory", "nvmlDeviceGetBAR1MemoryInfo", d.GetBAR1MemoryInfo)
	info.PCI.BAR1 = as(bar1, func(b nvml.BAR1Memory) uint64 { return b.Bar1Total })
	clock := func(what string, kind nvml.ClockType) *uint32 {
		return get(r, what, "nvmlDeviceGetMaxClockInfo", func() (uint32, nvml.Return) { return d.GetMaxClockInfo(kind) })
	}
	info.Clocks = Clocks{SM: clock("largest SM clock", nvml.CLOCK_SM), Memory: clock("largest memory clock", nvml.CLOCK_MEM)}
	info.Memory.Total, _ = r.memory(d)
	info.Memory.ECC = as(get(r, "ECC mode", "nvmlDeviceGetEccMode", func() (nvml.EnableState, nvml.Return) {
		current, _, ret := d.GetEccMode()
		return current, ret
	}), enabled)
	info.Memory.Width = get(r, "width of the memory bus", "nvmlDeviceGetMemoryBusWidth", d.GetMemoryBusWidth)
	if m := &info.Memory; m.Width != nil && info.Clocks.Memory != nil {
		m.Bandwidth = as(m.Width, func(n uint32) uint64 { return uint64(*info.Clocks.Memory) * 1e6 * 2 * uint64(n) / 8 })
	}
	r.links(d, info)
}

func enabled(e nvml.EnableState) bool { return e == nvml.FEATURE_ENABLED }

// maxCPUs is as many CPUs as a Linux kernel can have.
const maxCPUs = 8192

// cpuList writes a bit mask of CPUs as the kernel writes lists: "0-3,8".
func cpuList(mask []uint) string {
	var parts []string
	on := func(i int) bool {
		return i/bits.UintSize < len(mask) && mask[i/bits.UintSize]&(1<<(i%bits.UintSize)) != 0
	}
	for i := 0; i < len(mask)*bits.UintSize; i++ {
		if !on(i) {
			continue
		}
		first := i
		for on(i + 1) {
			i++
		}
		if first == i {
			parts = append(parts, fmt.Sprint(first))
		} else {
			parts = append(parts, fmt.Sprintf("%d-%d", first, i))
		}
	}
	return strings.Join(parts, ",")
}

// links are the ways to the other GPUs.
func (r *reader) links(d gpu, info *Info) {
	mine, direct := r.nvlinks(d)
	if mine.known {
		info.NVLinks = &mine.active
	}
	for _, other := range r.all {
		if other.index == d.index || r.err != nil {
			continue
		}
		link := Link{Index: other.index}
		level := get(r, "topology", "nvmlDeviceGetTopologyCommonAncestor", func() (nvml.GpuTopologyLevel, nvml.Return) {
			return d.GetTopologyCommonAncestor(other.Device)
		})
		if level != nil {
			link.Path = paths[int(*level)]
		}
		theirs, _ := r.nvlinks(other)
		address, err := r.busID(other)
		if err == nil {
			link.NVLinks = direct[address]
		}
		// Through switches every GPU reaches every other by all of its links.
		if link.NVLinks == 0 {
			link.NVLinks = min(mine.switched, theirs.switched)
		}
		info.Links = append(info.Links, link)
	}
}

// linkCount counts the active NVLinks of a GPU, and those that lead to a switch. A GPU
// that has none at all is not known.
type linkCount struct {
	active, switched int
	known            bool
}

// nvlinks counts the links of a GPU; direct has those to another GPU by its address.
func (r *reader) nvlinks(d gpu) (count linkCount, direct map[string]int) {
	direct = map[string]int{}
	if !r.has("nvmlDeviceGetNvLinkState") {
		return count, direct
	}
	for i := range nvml.NVLINK_MAX_LINKS {
		// A GPU without NVLink says so of every link; one that does not answer is no link.
		state, ret := d.GetNvLinkState(i)
		count.known = count.known || ret == nvml.SUCCESS
		if ret != nvml.SUCCESS || state != nvml.FEATURE_ENABLED {
			continue
		}
		count.active++
		if r.has("nvmlDeviceGetNvLinkRemoteDeviceType") {
			if kind, ret := d.GetNvLinkRemoteDeviceType(i); ret == nvml.SUCCESS && kind == nvml.NVLINK_DEVICE_TYPE_SWITCH {
				count.switched++
				continue
			}
		}
		if r.has("nvmlDeviceGetNvLinkRemotePciInfo_v2", "nvmlDeviceGetNvLinkRemotePciInfo") {
			if p, ret := d.GetNvLinkRemotePciInfo(i); ret == nvml.SUCCESS {
				direct[busIDOf(p)]++
			}
		}
	}
	return count, direct
}

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

// memory is in bytes. What the driver keeps for itself counts as used by nobody, as in
// nvidia-smi, where the driver is new enough to tell.
func (r *reader) memory(d nvml.Device) (total, used *uint64) {
	if m := get(r, "memory", "nvmlDeviceGetMemoryInfo_v2", d.GetMemoryInfo_v2); m != nil {
		return &m.Total, &m.Used
	}
	if m := get(r, "memory", "nvmlDeviceGetMemoryInfo", d.GetMemoryInfo); m != nil {
		return &m.Total, &m.Used
	}
	return nil, nil
}

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
