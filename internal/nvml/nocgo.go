//go:build !cgo

package nvml

import (
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host/device"
)

// Facts returns ErrNoCgo.
func Facts(config.Host) (device.Facts, error) { return device.Facts{}, ErrNoCgo }

// Infos returns ErrNoCgo.
func Infos(config.Host) (Snapshot, error) { return Snapshot{}, ErrNoCgo }

// States returns ErrNoCgo.
func States(config.Host) (Snapshot, error) { return Snapshot{}, ErrNoCgo }
