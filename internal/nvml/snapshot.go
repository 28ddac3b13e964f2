package nvml

import "github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host/device"

// Snapshot is the state of a host's GPUs, for people. A nil pointer means that this GPU or driver
// does not have the property.
type Snapshot struct {
	Driver string `json:"driver"`
	CUDA   string `json:"cuda"`
	GPUs   []GPU  `json:"gpus"`
	// Error says why a GPU is missing from GPUs.
	Error string `json:"error,omitempty"`

	hangs bool // a call has not returned, and holds what it holds
}

// GPU is one GPU of a snapshot.
type GPU struct {
	Facts device.GPUFacts `json:"facts"`
	// Error says why the rest is incomplete: the GPU is lost, for example.
	Error       string      `json:"error,omitempty"`
	Utilization Utilization `json:"utilization"`
	Sensors     Sensors     `json:"sensors"`
	// State has no processes if the GPU has MIG devices: they use those.
	State State `json:"state"`
	// Cgroups are what cgroups use, in bytes, by their directory, where the driver counts it.
	Cgroups map[string]uint64 `json:"cgroups,omitempty"`
	// Instances are the states of Facts.Instances, in their order.
	Instances []State `json:"instances,omitempty"`
}

// Sensors are the temperature, the power and the errors of a GPU.
type Sensors struct {
	Temperature *uint32 `json:"temperature_celsius,omitempty"`
	Power       *uint32 `json:"power_milliwatts,omitempty"`
	PowerLimit  *uint32 `json:"power_limit_milliwatts,omitempty"`
	// ECC errors since the driver was loaded.
	Corrected   *uint64 `json:"ecc_corrected,omitempty"`
	Uncorrected *uint64 `json:"ecc_uncorrected,omitempty"`
}

// Utilization is in percent of time.
type Utilization struct {
	GPU *uint32 `json:"gpu_percent,omitempty"`
}

// State is the live state of a GPU or a MIG device.
type State struct {
	Memory    MemoryState `json:"memory"`
	Processes []Process   `json:"processes"`
	// unlisted is the kind of processes that this GPU or driver does not list, if any.
	unlisted string
}

// MemoryState is in bytes.
type MemoryState struct {
	Total *uint64 `json:"total_bytes,omitempty"`
	Used  *uint64 `json:"used_bytes,omitempty"`
	// Free is less than the remainder if the driver keeps some memory for itself.
	Free *uint64 `json:"free_bytes,omitempty"`
}

// Process is a process that uses a GPU.
type Process struct {
	PID int `json:"pid"`
	// Type is "C" for computing, "G" for graphics, or "C+G".
	Type string `json:"type"`
	// Memory is what it has allocated on the GPU, in bytes.
	Memory *uint64 `json:"memory_bytes,omitempty"`
	// Utilization is the part of the last seconds in which it kept the GPU busy, in percent. It is
	// absent if this GPU or driver does not count it, as for MIG devices.
	Utilization *uint32 `json:"gpu_percent,omitempty"`
}
