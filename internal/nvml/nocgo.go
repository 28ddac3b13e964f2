//go:build !cgo

package nvml

import (
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host/device"
)

// Facts returns ErrNoCgo.
func Facts(config.Host) (device.Facts, error) { return device.Facts{}, ErrNoCgo }

// Live returns ErrNoCgo.
func Live(config.Host) (Snapshot, error) { return Snapshot{}, ErrNoCgo }
