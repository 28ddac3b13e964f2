package hostinfo

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/term"
)

// Print shows the driver, the GPUs, the MIG devices and what is wrong with them.
func (i *Info) Print(o *term.Output) {
	driver := "Driver " + cmp.Or(i.DriverVersion, "of "+host.PlatformTitle(i.Platform))
	if i.CUDAVersion != "" {
		driver += ", CUDA " + i.CUDAVersion
	}
	o.Line(term.Bold, driver)
	t := o.Table("GPU", "UUID", "PCI", "MINOR", "MODEL")
	for _, g := range i.GPUs {
		t.Row(term.Green, fmt.Sprint(g.Index), g.UUID, g.PCI, fmt.Sprint(g.Minor), g.Model)
	}
	t.Flush()
	i.printMIG(o)
	i.printProblems(o)
}

// printMIG lists the MIG devices, or counts those of each GPU if a screen does not hold them.
func (i *Info) printMIG(o *term.Output) {
	if len(i.MIG) == 0 {
		return
	}
	const listed = 12
	if len(i.MIG) <= listed {
		t := o.Table("MIG", "PROFILE", "DEVICE")
		for _, m := range i.MIG {
			t.Row(term.Green, fmt.Sprintf("%d:%d/%d", m.GPU, m.GI, m.CI), cmp.Or(m.Profile, "-"), cmp.Or(m.UUID, m.Name))
		}
		t.Flush()
		return
	}
	t := o.Table("GPU", "MIG DEVICES (each: nvidia-shimctl --json info)")
	for _, g := range i.GPUs {
		counts := map[string]int{}
		for _, m := range i.MIG {
			if m.GPU == g.Index {
				counts[cmp.Or(m.Profile, "unknown profile")]++
			}
		}
		var texts []string
		for _, profile := range slices.Sorted(maps.Keys(counts)) {
			texts = append(texts, fmt.Sprintf("%d × %s", counts[profile], profile))
		}
		t.Row(term.Green, fmt.Sprint(g.Index), cmp.Or(strings.Join(texts, ", "), "-"))
	}
	t.Flush()
}

func (i *Info) printProblems(o *term.Output) {
	if i.NVMLError != "" {
		o.Field("NVML:", 6, term.Yellow, i.NVMLError)
	}
	for _, g := range i.GPUs {
		if g.NVML == nil && i.NVMLError == "" {
			o.Field(fmt.Sprintf("GPU %d:", g.Index), 7, term.Red, "NVML does not list it")
		}
	}
	for _, g := range i.Excluded {
		o.Field("excluded:", 10, term.Yellow, fmt.Sprintf("%s at %s (NVreg_ExcludedGpus)", cmp.Or(g.UUID, g.Model), g.PCI))
	}
	for _, m := range i.Missing {
		o.Field("missing:", 9, term.Yellow, m)
	}
	for _, r := range i.Refused {
		o.Field("refused:", 9, term.Red, r.Path+": it "+r.Reason)
	}
}

// PrintFiles lists the driver files by capability.
func (i *Info) PrintFiles(o *term.Output) {
	for _, name := range slices.Sorted(maps.Keys(i.Files)) {
		o.Line(term.Bold, fmt.Sprintf("%s: %d files", name, len(i.Files[name])))
		for _, f := range i.Files[name] {
			o.Field("", 2, term.Plain, f)
		}
	}
	o.Field("searched:", 10, term.Bold, strings.Join(i.Searched, ", "))
}
