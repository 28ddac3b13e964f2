package host

import (
	"errors"
	"fmt"
	"slices"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/devnode"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host/device"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host/driver"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host/tegra"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host/wsl"
)

// Host describes this host at one point in time.
type Host struct {
	device.Inventory
	// Platform is "" for GPUs on the PCI bus with NVIDIA's kernel module, otherwise the platform's
	// name. It is for messages and JSON.
	Platform string
	// CompatDriver is the driver version by which an image's forward compatibility package is
	// judged. It is "" if such packages do not apply to this host's GPUs.
	CompatDriver string
}

// Discover reads the GPUs and MIG devices of this host, for every container again. The error is
// device.ErrNoDriver if the host has no NVIDIA driver.
func Discover(cfg config.Host) (Host, error) {
	inv, err := device.Discover(cfg)
	h := Host{Inventory: inv}
	noDriver := errors.Is(err, device.ErrNoDriver)
	switch {
	case (err == nil || noDriver) && tegra.Is(cfg, h.GPUs):
		h.Platform, h.GPUs = tegra.Name, tegra.GPUs(h.GPUs)
		return h, nil
	case noDriver && wsl.Is(cfg):
		h.Platform, h.GPUs = wsl.Name, wsl.GPUs()
		return h, nil
	case err != nil:
		return Host{}, err
	}
	h.CompatDriver = h.DriverVersion
	// In a container procfs shows everything on the machine. If nodes are missing, this host may be
	// such a container, or a host whose nodes have not been made.
	present := h.OnlyPresent()
	withheld := len(present.GPUs) < len(h.GPUs) || len(present.WithheldMIG) > 0
	if withheld && IsContainer(cfg, h.DriverVersion) {
		h.Inventory = present
	}
	return h, nil
}

// IsContainer reports whether this host is itself a container: its driver's libraries or its nodes
// are mounted, or it cannot make nodes. version is that of the loaded kernel module.
func IsContainer(cfg config.Host, version string) bool {
	return device.IsContainer(cfg) || driver.IsContainer(cfg, version)
}

// StartAgain says what to do about nodes on a host that is itself a container.
const StartAgain = "this host is itself a container: start it again with what its containers are to have (docker run --device, or mounts), or set that right on the machine"

// advise replaces what an error about a node says to do, if this host is itself a container.
func (h Host) advise(err error) error {
	var fix *device.FixError
	if !errors.As(err, &fix) || !IsContainer(h.Config, h.DriverVersion) {
		return err
	}
	return &device.FixError{Problem: fix.Problem, Fix: StartAgain, Err: fix.Err}
}

// AdviseFiles adds to an error about the driver's files what can be done if this host is itself a
// container.
func (h Host) AdviseFiles(err error) error {
	if !IsContainer(h.Config, h.DriverVersion) {
		return err
	}
	return fmt.Errorf("%w; this host is itself a container: install the driver's user-space of the machine's version here, or mount the machine's", err)
}

// ClassNodes is Inventory.ClassNodes, with errors for this kind of host.
func (h Host) ClassNodes(class string, channels []int) ([]device.Node, error) {
	nodes, err := h.Inventory.ClassNodes(class, channels)
	return nodes, h.advise(err)
}

// Find returns the host and its driver's files, for tools that show what a container would find. If
// only the search for files fails, the host is returned with the error.
func Find(cfg config.Host) (Host, driver.Files, error) {
	h, err := Discover(cfg)
	if err != nil {
		return Host{}, driver.Files{}, err
	}
	files, err := h.DriverFiles()
	return h, files, err
}

// Driver names the host's driver in a message.
func (h Host) Driver() string {
	if h.Platform == "" {
		return "driver " + h.DriverVersion
	}
	return "the driver of " + PlatformTitle(h.Platform)
}

// PlatformTitle is the name of a Host's Platform in messages. Platforms that were only simulated are
// experimental.
func PlatformTitle(platform string) string {
	return map[string]string{
		wsl.Name:   "Windows, by WSL2 (experimental)",
		tegra.Name: "a Tegra, by its lists of files (experimental)",
	}[platform]
}

// DriverFiles searches for the driver's files.
func (h Host) DriverFiles() (driver.Files, error) {
	switch h.Platform {
	case tegra.Name:
		return tegra.DriverFiles(h.Config, h.DriverVersion)
	case wsl.Name:
		return wsl.DriverFiles(h.Config)
	}
	return driver.Discover(h.Config, h.DriverVersion)
}

// Nodes returns the verified device nodes of a container that gets these devices and capabilities.
// files is the result of DriverFiles.
func (h Host) Nodes(set device.Set, caps []string, files driver.Files) ([]device.Node, error) {
	switch {
	case h.Platform == wsl.Name:
		return wsl.Nodes(h.Config)
	case h.Platform == tegra.Name && len(set.GPUs) == 0:
		return nil, nil
	case h.Platform == tegra.Name:
		nodes, err := tegra.Nodes(h.Config, files.Nodes)
		return slices.DeleteFunc(nodes, func(n device.Node) bool {
			return device.IsDisplayNode(n.Path) && !slices.Contains(caps, config.Display)
		}), err
	}
	nodes, err := h.Inventory.Nodes(set, caps)
	return nodes, h.advise(err)
}

// WithNodes returns the host with the GPUs and MIG devices as faulty ones whose nodes are missing or
// are not their driver's. If there would be no other device, nothing is changed.
func (h Host) WithNodes() Host {
	fault := func(set device.Set) (reason string) {
		if _, err := h.Nodes(set, nil, driver.Files{}); err != nil {
			reason = err.Error()
		}
		return reason
	}
	if h.Platform != "" || fault(device.Set{GPUs: h.GPUs, MIG: h.MIG}) == "" {
		return h
	}
	with := h
	for _, gpu := range h.GPUs {
		if reason := fault(device.Set{GPUs: []device.GPU{gpu}}); reason != "" {
			with.Withhold(gpu, reason)
		}
	}
	for _, in := range with.MIG {
		if reason := fault(device.Set{MIG: []device.Instance{in}}); reason != "" {
			with.WithholdMIG(in, reason)
		}
	}
	if len(with.MIG) == 0 && !slices.ContainsFunc(with.GPUs, with.IsWhole) {
		return h
	}
	return with
}

// Given returns the devices whose nodes are in numbers. On a platform whose nodes do not stand for
// one GPU each, any node stands for all GPUs.
func (h Host) Given(numbers []devnode.Number) (device.Set, error) {
	if h.Platform == "" {
		return h.Inventory.Given(numbers)
	}
	if len(numbers) == 0 {
		return device.Set{}, nil
	}
	files, err := h.DriverFiles()
	if err != nil {
		return device.Set{}, err
	}
	all := device.Set{GPUs: h.GPUs}
	nodes, err := h.Nodes(all, []string{config.Display}, files)
	if err != nil || !slices.ContainsFunc(nodes, func(n device.Node) bool { return slices.Contains(numbers, n.Number()) }) {
		return device.Set{}, err
	}
	return all, nil
}
