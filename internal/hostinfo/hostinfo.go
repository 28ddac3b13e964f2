package hostinfo

import (
	"cmp"
	"strings"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host/device"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host/driver"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/probe"
)

// Info is what this host has for containers.
type Info struct {
	DriverVersion string `json:"driver_version"`
	// CUDAVersion is the newest that the driver supports. NVMLError says why it is missing.
	CUDAVersion string              `json:"cuda_version,omitempty"`
	NVMLError   string              `json:"nvml_error,omitempty"`
	Platform    string              `json:"platform,omitempty"`
	Roots       map[string]string   `json:"roots"`
	GPUs        []GPU               `json:"gpus"`
	Excluded    []GPU               `json:"excluded"`
	MIG         []gpuinject.PlanMIG `json:"mig"`
	Files       map[string][]string `json:"files"`
	Searched    []string            `json:"searched"`
	Missing     []string            `json:"missing"`
	Refused     []driver.Refused    `json:"refused"`
}

// GPU is a GPU of this host.
type GPU struct {
	gpuinject.PlanGPU
	Model string `json:"model"`
	// NVML is absent if NVML does not answer, or not for this GPU.
	NVML *device.GPUFacts `json:"nvml,omitempty"`
}

// Read finds the driver, the GPUs and the driver files of a host, and asks NVML for the rest.
func Read(h config.Host, ask gpuinject.Ask) (*Info, error) {
	inv, files, err := host.Find(h)
	if err != nil {
		return nil, err
	}
	answers := ask(probe.Questions{Facts: true})
	var facts device.Facts
	if answers.Facts != nil {
		facts = *answers.Facts
	}
	info := &Info{
		DriverVersion: inv.DriverVersion, Platform: inv.Platform, CUDAVersion: facts.CUDA, NVMLError: answers.FactsError,
		Roots: map[string]string{"driver": h.DriverRoot, "dev": h.DevRoot, "proc": h.ProcRoot, "sys": h.SysRoot, "state": h.StateDir},
		GPUs:  gpuInfos(inv.GPUs, facts), Excluded: gpuInfos(inv.Excluded, facts), MIG: []gpuinject.PlanMIG{},
		Files: filesByCapability(&files), Searched: files.Searched, Missing: files.Missing, Refused: files.Refused,
	}
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
			if strings.EqualFold(f.BusID, g.BusID) {
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
