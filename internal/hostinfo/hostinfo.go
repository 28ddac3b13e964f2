package hostinfo

import (
	"cmp"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host/device"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host/driver"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/question"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/term"
)

// Info describes what this host offers to containers.
type Info struct {
	DriverVersion string `json:"driver_version"`
	// CUDAVersion is the newest version that the driver supports. NVMLError is the reason if it is
	// missing.
	CUDAVersion string              `json:"cuda_version,omitempty"`
	NVMLError   string              `json:"nvml_error,omitempty"`
	Platform    string              `json:"platform,omitempty"`
	Roots       map[string]string   `json:"roots"`
	GPUs        []GPU               `json:"gpus"`
	Excluded    []GPU               `json:"excluded"`
	MIG         []gpuinject.PlanMIG `json:"mig"`
	// Faults say which GPUs and MIG devices cannot be used or do not answer NVML, and why.
	Faults   []string            `json:"faults"`
	Files    map[string][]string `json:"files"`
	Searched []string            `json:"searched"`
	Missing  []string            `json:"missing"`
	Refused  []driver.Refused    `json:"refused"`
	// LeftOut are libraries of the driver that containers do not get.
	LeftOut []driver.Refused `json:"left_out,omitempty"`
	// Unusable is the reason if no container can use a GPU here.
	Unusable string `json:"unusable,omitempty"`
}

// GPU is a GPU of this host.
type GPU struct {
	gpuinject.PlanGPU
	Model string `json:"model"`
	// NVML is nil if NVML does not answer at all or for this GPU.
	NVML *device.GPUFacts `json:"nvml,omitempty"`
}

// Read finds the driver, the GPUs and the driver files of a host, and asks NVML for the rest.
func Read(h config.Host, ask question.Ask) (*Info, error) {
	inv, files, err := host.Find(h)
	if err != nil {
		return nil, err
	}
	answers := ask(question.Questions{Facts: true})
	var facts device.Facts
	if answers.Facts != nil {
		facts = *answers.Facts
		inv.Inventory = inv.WithUUIDs(facts)
	}
	info := &Info{
		DriverVersion: inv.DriverVersion, Platform: inv.Platform, CUDAVersion: facts.CUDA, NVMLError: answers.FactsError,
		Roots: map[string]string{"driver": h.DriverRoot, "dev": h.DevRoot, "proc": h.ProcRoot, "sys": h.SysRoot, "state": h.StateDir},
		GPUs:  gpuInfos(inv.GPUs, facts), Excluded: gpuInfos(inv.Excluded, facts), MIG: []gpuinject.PlanMIG{}, Faults: []string{},
		Files: filesByCapability(&files), Searched: append([]string{}, files.Searched...), Missing: append([]string{}, files.Missing...),
		Refused: append([]driver.Refused{}, files.Refused...), LeftOut: files.LeftOut,
	}
	if err := files.Check([]string{config.Compute, config.Utility}); err != nil {
		info.Unusable = err.Error()
	} else if len(info.GPUs) == 0 {
		info.Unusable = "no GPU can be used"
	}
	for _, err := range inv.Faults() {
		info.Faults = append(info.Faults, err.Error())
	}
	info.Faults = append(info.Faults, facts.Faults()...)
	for i, in := range inv.Annotate(inv.MIG, facts) {
		info.MIG = append(info.MIG, gpuinject.PlanMIG{UUID: in.UUID, GPU: in.GPU, GI: in.GI, CI: in.CI, Name: inv.MIG[i].Name(), Profile: in.Profile})
	}
	return info, nil
}

func gpuInfos(gpus []device.GPU, facts device.Facts) []GPU {
	list := []GPU{}
	for _, g := range gpus {
		info := GPU{PlanGPU: gpuinject.NewPlanGPU(g), Model: g.Model}
		for _, f := range facts.GPUs {
			if f.BusID == g.BusID && f.BusID != "" {
				info.NVML = &f
			}
		}
		list = append(list, info)
	}
	return list
}

func filesByCapability(files *driver.Files) map[string][]string {
	byCapability := map[string][]string{}
	add := func(path string, capabilities ...string) {
		for _, c := range capabilities {
			byCapability[c] = append(byCapability[c], path)
		}
	}
	for _, l := range files.Libraries {
		if l.Bits == 32 {
			add(l.Path, config.Compat32)
		} else {
			add(l.Path, l.Capabilities...)
		}
	}
	for _, b := range files.Binaries {
		add(b.Path, b.Capabilities...)
	}
	for _, d := range files.Data {
		add(cmp.Or(d.Path, d.Dest+" (made, the host has none)"), d.Capabilities...)
	}
	return byCapability
}

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

// printMIG lists the MIG devices, or counts those of each GPU if they do not fit on a screen.
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
	if i.Unusable != "" {
		o.Field("unusable:", 10, term.Red, i.Unusable)
	}
	if i.NVMLError != "" {
		o.Field("NVML:", 6, term.Yellow, i.NVMLError)
	}
	for _, g := range i.GPUs {
		if g.NVML == nil && i.NVMLError == "" {
			o.Field(fmt.Sprintf("GPU %d:", g.Index), 7, term.Red, "NVML does not list it")
		}
	}
	for _, f := range i.Faults {
		o.Field("faulty:", 10, term.Red, f)
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
	for _, r := range i.LeftOut {
		o.Field("left out:", 10, term.Plain, r.Path+": "+r.Reason)
	}
}

// PrintFiles shows, by directory, what containers get of the driver and with which capabilities, and
// what they do not get and why.
func (i *Info) PrintFiles(o *term.Output) {
	given := map[string][]string{}
	for _, name := range slices.Sorted(maps.Keys(i.Files)) {
		for _, f := range i.Files[name] {
			given[f] = append(given[f], name)
		}
	}
	directories := map[string]map[string]string{}
	add := func(file, text string) {
		dir, name := path.Split(file)
		if directories[dir] == nil {
			directories[dir] = map[string]string{}
		}
		directories[dir][name] = text
	}
	for f, capabilities := range given {
		add(f, strings.Join(slices.Compact(capabilities), ", "))
	}
	for _, r := range i.Refused {
		add(r.Path, "refused: it "+r.Reason)
	}
	for _, r := range i.LeftOut {
		add(r.Path, "left out: "+r.Reason)
	}
	for _, dir := range slices.Sorted(maps.Keys(directories)) {
		t := o.Table(dir, "GIVEN WITH, OR WHY NOT")
		for _, name := range slices.Sorted(maps.Keys(directories[dir])) {
			t.Row(term.Plain, name, directories[dir][name])
		}
		t.Flush()
	}
	o.Field("searched:", 10, term.Bold, strings.Join(i.Searched, ", "))
}
