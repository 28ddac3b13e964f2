package nvml

import "github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host/device"

// Snapshot is the state of a host's GPUs, for people. A nil pointer is a property that this GPU or
// driver does not have.
type Snapshot struct {
	Driver string `json:"driver"`
	CUDA   string `json:"cuda"`
	GPUs   []GPU  `json:"gpus"`
	// Error says why a GPU is missing in GPUs.
	Error string `json:"error,omitempty"`
}

// GPU is one GPU of a snapshot.
type GPU struct {
	Facts device.GPUFacts `json:"facts"`
	// Error says why the rest is incomplete: the GPU is lost, for example.
	Error string `json:"error,omitempty"`
	State *State `json:"state,omitempty"`
	// Instances are the states of Facts.Instances, in their order.
	Instances []InstanceState `json:"instances,omitempty"`
}

// State is what a GPU does now.
type State struct {
	Utilization Utilization `json:"utilization"`
	Memory      MemoryState `json:"memory"`
	// Processes use the GPU itself; with MIG, processes use the instances.
	Processes []Process `json:"processes"`
}

// Utilization is in percent of the time.
type Utilization struct {
	GPU *uint32 `json:"gpu_percent,omitempty"`
}

// MemoryState is in bytes.
type MemoryState struct {
	Total *uint64 `json:"total_bytes,omitempty"`
	Used  *uint64 `json:"used_bytes,omitempty"`
}

// InstanceState is what a MIG device does now.
type InstanceState struct {
	Memory    MemoryState `json:"memory"`
	Processes []Process   `json:"processes"`
}

// Process is a process that uses a GPU.
type Process struct {
	PID int `json:"pid"`
	// Type is "C" for computing, "G" for graphics, or "C+G".
	Type string `json:"type"`
	// Memory is what it has allocated on the GPU, in bytes.
	Memory *uint64 `json:"memory_bytes,omitempty"`
}
