package sim

import (
	"crypto/sha256"
	"fmt"
)

// buses are the PCI bus numbers of the GPUs, in order, spread like those of a
// server with PCIe switches.
var buses = [MaxGPUs]int{0x19, 0x3b, 0x4c, 0x5d, 0x66, 0x7a, 0x8f, 0x9b, 0xa5, 0xab, 0xba, 0xbb, 0xca, 0xcb, 0xdb, 0xe4}

// planGPUs names n GPUs. The module numbers GPUs in the order in which it probed
// them, NVML and CUDA by bus id: with three GPUs or more the two differ here, so
// that code which takes one for the other fails.
func planGPUs(n int) []GPU {
	gpus := make([]GPU, n)
	for i := range gpus {
		busID := fmt.Sprintf("0000:%02x:00.0", buses[i])
		minor := i
		if n >= 3 {
			minor = (i + 2) % n
		}
		gpus[i] = GPU{Index: i, Minor: minor, BusID: busID, UUID: "GPU-" + uuid(busID)}
	}
	return gpus
}

// uuid is the same one for the same name on every host.
func uuid(name string) string {
	h := sha256.Sum256([]byte("simulated NVIDIA GPU " + name))
	return fmt.Sprintf("%x-%x-%x-%x-%x", h[0:4], h[4:6], h[6:8], h[8:10], h[10:16])
}

// What the kernel module has a capability for, whether the GPU can do it or not.
const (
	capGPUs          = 32
	gpuInstances     = 15
	computeInstances = 8
)

// capMinor is the minor number of the capability node of a GPU instance, or of a
// compute instance with ci ≥ 0. The table in the kernel module begins with
// fabric-mgmt, mig/config and mig/monitor.
func capMinor(gpuMinor, gi, ci int) int {
	return 3 + (gpuMinor*gpuInstances+gi)*(1+computeInstances) + 1 + ci
}
