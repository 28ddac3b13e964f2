//go:build !cgo

package nvml

import (
	"errors"
	"time"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host/device"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/probe"
)

// Linked reports whether this program can load NVML.
const Linked = false

// Facts returns errors.ErrUnsupported.
func Facts(config.Host) (device.Facts, error) { return device.Facts{}, errors.ErrUnsupported }

// Live returns errors.ErrUnsupported.
func Live(config.Host, []string) (Snapshot, error) { return Snapshot{}, errors.ErrUnsupported }

// Watch returns errors.ErrUnsupported.
func Watch(config.Host, time.Duration, bool, func(probe.Observation) error) error {
	return errors.ErrUnsupported
}

// Suspend returns errors.ErrUnsupported.
func Suspend(config.Host, probe.Questions) ([]int, probe.Memory, error) {
	return nil, nil, errors.ErrUnsupported
}

// Resume returns errors.ErrUnsupported.
func Resume(config.Host, probe.Questions, func() error) ([]int, error) {
	return nil, errors.ErrUnsupported
}

// SetMemory returns errors.ErrUnsupported.
func SetMemory(config.Host, probe.Questions) ([]probe.MemoryUse, error) {
	return nil, errors.ErrUnsupported
}

// ReadMemory returns errors.ErrUnsupported.
func ReadMemory(config.Host, probe.Questions) ([]probe.MemoryUse, error) {
	return nil, errors.ErrUnsupported
}

// ReleaseMemory returns errors.ErrUnsupported.
func ReleaseMemory(config.Host, probe.Questions) error { return errors.ErrUnsupported }
