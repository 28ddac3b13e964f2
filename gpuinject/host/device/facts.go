package device

import "slices"

// Facts are properties of the GPUs that only NVML can supply. The probe prints them as JSON in a
// separate process, so that the shim never loads NVML.
type Facts struct {
	Driver string     `json:"driver"` // the version that NVML reports: "580.159.04"
	CUDA   string     `json:"cuda"`   // the newest version that the driver supports: "13.0"
	GPUs   []GPUFacts `json:"gpus"`
	// CUDAOnly is set if the host has no NVML and libcuda answered: only CUDA and Arch are known.
	CUDAOnly bool `json:"cuda_only,omitempty"`
}

// GPUFacts are the facts about one GPU, in the order of NVML's indices.
type GPUFacts struct {
	Index int `json:"index"` // NVML's
	// Error says why the answer about this GPU, which it names, is not complete: the GPU is lost,
	// for example. The facts about other GPUs are complete nevertheless. Without a handle of the
	// GPU, only the error is known.
	Error string `json:"error,omitempty"`
	Minor int    `json:"minor"`
	UUID  string `json:"uuid"`
	// BusID is the PCI address in procfs' form: "0000:65:00.0".
	BusID string `json:"pci"`
	Name  string `json:"name"`
	// Brand is one of NVML's brands as requirements spell it: "nvidia", "tesla", "geforcertx",
	// "unknown".
	Brand string `json:"brand"`
	Arch  string `json:"arch"` // the compute capability: "9.0"
	// MIG is set if MIG mode is on, with or without an instance.
	MIG       bool            `json:"mig"`
	Instances []InstanceFacts `json:"instances"`
}

// InstanceFacts are the facts about one MIG device, in the order of NVML's indices.
type InstanceFacts struct {
	// Index is the number behind the colon of "0:1", as in nvidia-smi -L.
	Index int `json:"index"`
	// UUID is "MIG-" and 36 characters, or the older "MIG-GPU-<uuid>/<gi>/<ci>".
	UUID string `json:"uuid"`
	// GI and CI are the ids of the GPU instance and of the compute instance in it.
	GI   int    `json:"gi"`
	CI   int    `json:"ci"`
	Name string `json:"name"` // the profile's: "1g.18gb"
	// Error says, naming the MIG device, why these facts are not complete.
	Error string `json:"error,omitempty"`
}

// Faults lists why NVML's answer is not complete, for each GPU and MIG device of which it is not.
func (f Facts) Faults() (list []string) {
	for _, g := range f.GPUs {
		if g.Error != "" {
			list = append(list, g.Error)
		}
		for _, in := range g.Instances {
			if in.Error != "" {
				list = append(list, in.Error)
			}
		}
	}
	return list
}

// unknown returns why NVML's answer is missing, or "" if every answer is complete.
func (f Facts) unknown() string {
	for _, fault := range f.Faults() {
		return fault
	}
	return ""
}

// Fault returns why NVML's answer about the GPU is not complete, or "".
func (f Facts) Fault(gpu GPU) string {
	for _, g := range f.GPUs {
		if sameBusID(g.BusID, gpu.BusID) {
			return g.Error
		}
	}
	return f.unknown()
}

// Complete reports whether NVML answered in full about every GPU of the inventory.
func (f Facts) Complete(inv Inventory) bool {
	return f.unknown() == "" && len(f.GPUs) >= len(inv.GPUs) && !slices.ContainsFunc(inv.GPUs, func(gpu GPU) bool {
		return gpu.BusID != "" && !slices.ContainsFunc(f.GPUs, func(g GPUFacts) bool { return sameBusID(g.BusID, gpu.BusID) })
	})
}

// Annotate returns a copy of the list with NVML's names filled in, as far as facts contain them.
func (inv Inventory) Annotate(list []Instance, facts Facts) []Instance {
	list = slices.Clone(list)
	for _, gpu := range inv.GPUs {
		i := slices.IndexFunc(facts.GPUs, func(g GPUFacts) bool { return sameBusID(g.BusID, gpu.BusID) })
		if i < 0 {
			continue
		}
		for _, f := range facts.GPUs[i].Instances {
			if f.Error != "" {
				continue // its ids may be zero
			}
			if j := slices.IndexFunc(list, Instance{Minor: gpu.Minor, GI: f.GI, CI: f.CI}.is); j >= 0 {
				list[j].UUID, list[j].Index, list[j].Profile = f.UUID, f.Index, f.Name
			}
		}
	}
	return list
}
