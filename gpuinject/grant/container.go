package grant

import (
	"slices"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host/device"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/request"
)

// Container is what decides about a container's grant: what it asks for and who it is.
type Container struct {
	Config  *config.Config
	Input   request.Input
	Request request.Request
	// Devices are the nodes in its specification.
	Devices []specs.LinuxDevice
}

func hasNode(c Container, n device.Node) bool {
	return slices.Contains(c.Input.Container.Nodes, n.Number())
}
