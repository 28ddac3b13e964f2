package device

// Facts are what only NVML knows of this host's GPUs. The probe prints them as JSON
// in a process of its own; the shim reads them and never loads NVML (design section
// 4).
type Facts struct {
	// Driver is the version that NVML reports: "580.159.04".
	Driver string `json:"driver"`
	// CUDA is the newest version of CUDA that the driver supports: "13.0".
	CUDA string     `json:"cuda"`
	GPUs []GPUFacts `json:"gpus"`
}

// GPUFacts are those of one GPU, in the order of NVML's indices.
type GPUFacts struct {
	// Index is NVML's.
	Index int    `json:"index"`
	Minor int    `json:"minor"`
	UUID  string `json:"uuid"`
	// BusID is the PCI address in procfs' form: "0000:65:00.0".
	BusID string `json:"pci"`
	Name  string `json:"name"`
	// Brand is one of NVML's brands in the spelling of requirements: "nvidia",
	// "tesla", "geforcertx", "unknown".
	Brand string `json:"brand"`
	// Arch is the compute capability: "9.0".
	Arch string `json:"arch"`
	// MIG says that MIG mode is on, with or without an instance.
	MIG       bool            `json:"mig"`
	Instances []InstanceFacts `json:"instances"`
}

// InstanceFacts are those of one MIG device, in the order of NVML's indices.
type InstanceFacts struct {
	// Index is the number behind the colon of "0:1", as in nvidia-smi -L.
	Index int `json:"index"`
	// UUID is "MIG-" and 36 characters, or the older "MIG-GPU-<uuid>/<gi>/<ci>".
	UUID string `json:"uuid"`
	// GI and CI are the ids of the GPU instance and of the compute instance in it.
	GI int `json:"gi"`
	CI int `json:"ci"`
	// Name is the profile's: "1g.18gb".
	Name string `json:"name"`
}
