//go:build cgo

package nvml

import (
	"fmt"
	"math/bits"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

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

// info reads what a GPU is.
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
