package nvml

import "github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host/device"

// Snapshot is what NVML says of a host for people: how the GPUs are, and what they do.
// A nil pointer is a property that this GPU or driver does not have.
type Snapshot struct {
	Driver string `json:"driver"`
	CUDA   string `json:"cuda"`
	GPUs   []GPU  `json:"gpus"`
	// Error says why a GPU is not among GPUs.
	Error string `json:"error,omitempty"`
}

// GPU is one of NVML's.
type GPU struct {
	Facts device.GPUFacts `json:"facts"`
	// Error says why the rest is not complete: the GPU is lost, for example.
	Error string `json:"error,omitempty"`
	// Info is there where Infos made the snapshot, State where States did.
	Info  *Info  `json:"info,omitempty"`
	State *State `json:"state,omitempty"`
	// Instances are the states of Facts.Instances, in their order.
	Instances []InstanceState `json:"instances,omitempty"`
}

// Info is what a GPU is, and stays while the driver is loaded.
type Info struct {
	// Family is the architecture's name: "Hopper".
	Family *string `json:"family,omitempty"`
	// Cores is the number of CUDA cores.
	Cores *int `json:"cores,omitempty"`
	// PowerLimit is in watts.
	PowerLimit *float64 `json:"power_limit_watts,omitempty"`
	// CPUs are those that are near, as "0-3,8-11".
	CPUs        *string    `json:"cpu_affinity,omitempty"`
	Persistence *bool      `json:"persistence,omitempty"`
	PCI         PCIInfo    `json:"pcie"`
	Clocks      Clocks     `json:"max_clocks"`
	Memory      MemoryInfo `json:"memory"`
	// NVLinks is the number of active links to GPUs and switches.
	NVLinks *int `json:"nvlinks,omitempty"`
	// Links are the ways to the other GPUs.
	Links []Link `json:"links,omitempty"`
}

// PCIInfo is a GPU's connection to the host.
type PCIInfo struct {
	Generation *int `json:"generation,omitempty"`
	Width      *int `json:"width,omitempty"`
	// Bandwidth is that of both in one direction, in bytes per second.
	Bandwidth *uint64 `json:"bandwidth_bytes_per_second,omitempty"`
	BAR1      *uint64 `json:"bar1_bytes,omitempty"`
}

// MemoryInfo is a GPU's memory.
type MemoryInfo struct {
	Total *uint64 `json:"total_bytes,omitempty"`
	// ECC says that errors are corrected.
	ECC   *bool   `json:"ecc,omitempty"`
	Width *uint32 `json:"bus_width_bits,omitempty"`
	// Bandwidth is two transfers in each cycle of the largest clock, in bytes per second.
	Bandwidth *uint64 `json:"bandwidth_bytes_per_second,omitempty"`
}

// Clocks are in MHz.
type Clocks struct {
	SM     *uint32 `json:"sm_mhz,omitempty"`
	Memory *uint32 `json:"memory_mhz,omitempty"`
}

// Link is the way from one GPU to another.
type Link struct {
	Index int    `json:"index"`
	UUID  string `json:"uuid"`
	PCI   string `json:"pci"`
	// Path is what is between the two on PCIe, in the words of nvidia-smi topo: "PIX" a
	// switch, "PXB" several, "PHB" a host bridge, "NODE" a NUMA node, "SYS" more; or
	// "SAME" for one board.
	Path string `json:"path,omitempty"`
	// NVLinks is how many NVLinks connect them, directly or by way of switches.
	NVLinks int `json:"nvlinks,omitempty"`
}

// State is what a GPU does now.
type State struct {
	// Power is in watts, Temperature in degrees Celsius.
	Power       *float64    `json:"power_watts,omitempty"`
	PowerLimit  *float64    `json:"power_limit_watts,omitempty"`
	Temperature *uint32     `json:"temperature_celsius,omitempty"`
	Utilization Utilization `json:"utilization"`
	Memory      MemoryState `json:"memory"`
	ECC         ECCErrors   `json:"ecc_errors"`
	Clocks      Clocks      `json:"clocks"`
	BAR1Used    *uint64     `json:"bar1_used_bytes,omitempty"`
	PCIe        Throughput  `json:"pcie"`
	// Processes are those on the GPU itself; with MIG they are on the instances.
	Processes []Process `json:"processes"`
}

// Utilization is in percent of the time.
type Utilization struct {
	GPU     *uint32 `json:"gpu_percent,omitempty"`
	Memory  *uint32 `json:"memory_percent,omitempty"`
	Encoder *uint32 `json:"encoder_percent,omitempty"`
	Decoder *uint32 `json:"decoder_percent,omitempty"`
}

// MemoryState is in bytes.
type MemoryState struct {
	Total *uint64 `json:"total_bytes,omitempty"`
	Used  *uint64 `json:"used_bytes,omitempty"`
}

// ECCErrors count since the driver was loaded. The counts by place are of errors that
// were not corrected.
type ECCErrors struct {
	Corrected   *uint64 `json:"corrected,omitempty"`
	Uncorrected *uint64 `json:"uncorrected,omitempty"`
	L1          *uint64 `json:"l1_uncorrected,omitempty"`
	L2          *uint64 `json:"l2_uncorrected,omitempty"`
	Memory      *uint64 `json:"memory_uncorrected,omitempty"`
}

// Throughput is in bytes per second, over 20 milliseconds.
type Throughput struct {
	RX *uint64 `json:"rx_bytes_per_second,omitempty"`
	TX *uint64 `json:"tx_bytes_per_second,omitempty"`
}

// InstanceState is what a MIG device does now.
type InstanceState struct {
	Memory    MemoryState `json:"memory"`
	Processes []Process   `json:"processes"`
}

// Process is one that uses a GPU.
type Process struct {
	PID int `json:"pid"`
	// Type is "C" for computing, "G" for graphics, or "C+G".
	Type string `json:"type"`
	// Memory is what it has allocated on the GPU, in bytes.
	Memory *uint64 `json:"memory_bytes,omitempty"`
}

// families are NVML's architectures (nvmlDeviceArchitecture_t), by number.
var families = map[uint32]string{
	2: "Kepler", 3: "Maxwell", 4: "Pascal", 5: "Volta", 6: "Turing", 7: "Ampere", 8: "Ada", 9: "Hopper", 10: "Blackwell",
}

// paths are NVML's levels of topology (nvmlGpuTopologyLevel_t) as nvidia-smi names them.
var paths = map[int]string{0: "SAME", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}

// lanes is what a lane of each PCIe generation carries in one direction, in bytes per
// second, less its line code.
var lanes = map[int]uint64{1: 250e6, 2: 500e6, 3: 985e6, 4: 1969e6, 5: 3938e6, 6: 7563e6}
