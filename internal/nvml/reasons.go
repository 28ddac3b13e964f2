//go:build cgo

package nvml

import (
	"fmt"
	"time"
)

// Results of the driver (CUresult).
const (
	invalidValue    = 1
	notInitialized  = 3
	operatingSystem = 304
	notSupported    = 801
)

// lockTimeout limits the wait for the GPU work that a process has begun.
const lockTimeout = 10 * time.Second

// reasons are the usual causes of the driver's results.
var reasons = map[int]string{
	2:   "there is not enough free memory",
	600: fmt.Sprintf("its GPU work did not end within %s", lockTimeout),

	notSupported: "it uses MPS, or memory that the driver cannot move, such as managed memory",
}

// reasonFor returns why a function of libcuda has failed with this result, or "". placed is true if
// the memory was to move to other GPUs.
func reasonFor(function string, rc int, placed bool) string {
	switch {
	case function == "Restore" && rc == invalidValue && placed:
		return "the driver does not move it between these GPUs: resume it where it was"
	case function == "Restore" && (rc == invalidValue || rc == notSupported):
		return "it uses memory of another process (CUDA IPC) or much of another GPU (peer access), which the driver cannot restore (seen with 580.159.04): delete the container"
	case function == "Restore" && rc == operatingSystem:
		return "the driver cannot restore a process again for which the GPU was full (seen with 580.159.04): delete the container"
	}
	return reasons[rc]
}
