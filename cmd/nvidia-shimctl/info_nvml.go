package main

import (
	"fmt"
	"strings"

	"github.com/urfave/cli/v3"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/nvml"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/term"
)

// addNVML completes what the kernel's files say by what only NVML knows, where it
// answers.
func (i *hostInfo) addNVML(c *cli.Command) {
	var snapshot nvml.Snapshot
	if err := askNVML(c, "info", &snapshot); err != nil {
		i.NVMLError = err.Error()
		return
	}
	i.CUDAVersion, i.NVMLError = snapshot.CUDA, snapshot.Error
	for k := range i.GPUs {
		for _, g := range snapshot.GPUs {
			if strings.EqualFold(g.Facts.BusID, i.GPUs[k].PCI) {
				i.GPUs[k].NVML = &nvmlInfo{Brand: g.Facts.Brand, Arch: g.Facts.Arch, MIG: g.Facts.MIG, MIGs: g.Facts.Instances, Error: g.Error, Info: g.Info}
			}
		}
	}
}

func driverLine(driver, cuda string) string {
	if cuda == "" {
		return "Driver " + driver
	}
	return "Driver " + driver + ", CUDA " + cuda
}

func (i *hostInfo) printNVML(o *term.Output) {
	if i.NVMLError != "" {
		o.Field("NVML:", 6, term.Yellow, i.NVMLError)
	}
	for _, g := range i.GPUs {
		if g.NVML == nil {
			continue
		}
		label := fmt.Sprintf("GPU %d:", g.Index)
		columns := len(label) + 1
		o.Field(label, columns, term.Plain, strings.Join(g.NVML.properties(), ", "))
		if links := g.NVML.links(); links != "" {
			o.Field("", columns, term.Plain, links)
		}
		for _, m := range g.NVML.MIGs {
			o.Field("", columns, term.Green, fmt.Sprintf("%s: profile %s, GPU instance %d, compute instance %d", m.UUID, m.Name, m.GI, m.CI))
		}
		if g.NVML.Error != "" {
			o.Field("", columns, term.Red, g.NVML.Error)
		}
	}
}

// properties are those that the GPU has, in words.
func (n *nvmlInfo) properties() []string {
	var list []string
	add := func(format string, args ...any) { list = append(list, fmt.Sprintf(format, args...)) }
	info := n.Info
	if info == nil {
		info = &nvml.Info{}
	}
	if info.Family != nil {
		add("%s", *info.Family)
	}
	if n.Arch != "" {
		add("architecture %s", n.Arch)
	}
	add("brand %s", n.Brand)
	if info.Cores != nil {
		add("%d cores", *info.Cores)
	}
	if m := info.Memory; m.Total != nil {
		text := size(m.Total)
		if m.ECC != nil {
			text += map[bool]string{true: " with ECC", false: " without ECC"}[*m.ECC]
		}
		if m.Bandwidth != nil {
			text += fmt.Sprintf(" at %d GB/s", *m.Bandwidth/1e9)
		}
		add("%s", text)
	}
	if info.PowerLimit != nil {
		add("%.0f W", *info.PowerLimit)
	}
	if info.Clocks.SM != nil && info.Clocks.Memory != nil {
		add("up to %d MHz, memory %d MHz", *info.Clocks.SM, *info.Clocks.Memory)
	}
	if p := info.PCI; p.Generation != nil && p.Width != nil {
		text := fmt.Sprintf("PCIe %d x%d", *p.Generation, *p.Width)
		if p.Bandwidth != nil {
			text += fmt.Sprintf(" at %d GB/s", *p.Bandwidth/1e9)
		}
		add("%s", text)
	}
	if info.PCI.BAR1 != nil {
		add("BAR1 %s", size(info.PCI.BAR1))
	}
	if info.CPUs != nil {
		add("CPUs %s", *info.CPUs)
	}
	if info.Persistence != nil {
		add("persistence mode %s", map[bool]string{true: "on", false: "off"}[*info.Persistence])
	}
	return list
}

// links are the ways to the other GPUs, as nvidia-smi topo names them.
func (n *nvmlInfo) links() string {
	if n.Info == nil || len(n.Links) == 0 {
		return ""
	}
	var list []string
	for _, l := range n.Links {
		way := l.Path
		if l.NVLinks > 0 {
			way = fmt.Sprintf("NV%d", l.NVLinks)
		}
		if way != "" {
			list = append(list, fmt.Sprintf("GPU %d %s", l.Index, way))
		}
	}
	return "links: " + strings.Join(list, ", ")
}
