package place

import (
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/bundle"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host/device"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host/driver"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/request"
)

// Container is a container and the settings that say where things are.
type Container struct {
	*bundle.Bundle
	Input    request.Input
	Host     config.Host
	Settings config.Container
}

// Given is what a container gets.
type Given struct {
	Request request.Request
	// Set holds its devices, GPUs the GPUs that it sees, Nodes the device nodes.
	Set   device.Set
	GPUs  []device.GPU
	Nodes []device.Node
	// Files of the driver, for the capabilities of the request.
	Files driver.Files
	// Masked is true if the container gets the mask over /proc/driver.
	Masked bool
}

// Files created in the bundle for one container and deleted with it, and their destinations.
const (
	profileName = "application-profile.conf"
	byPathName  = "dri-by-path"
	cacheName   = "ld.so.cache"

	profileDest = "/etc/nvidia/nvidia-application-profiles-rc.d/10-container.conf"
	byPathDest  = "/dev/dri/by-path"
)

var bundleFileNames = []string{profileName, byPathName, cacheName}
