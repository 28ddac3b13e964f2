package gpuinject

import (
	"errors"
	"strings"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host/device"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host/driver"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/image"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/policy"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/request"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/state"
)

// Resolve decides everything that will be done for a container that is not Plain and whose image is
// mounted at root. It changes only what the shim itself keeps under its state directory, and not
// even that if the state is read-only. With an error, the Plan contains the decisions that led to
// it.
func Resolve(c Container, root *image.Root, ask Ask) (Plan, error) {
	p := newPlan(c)
	err := planHooks(c, &p)
	if err == nil && c.Asks {
		err = planDriver(c, root, ask, &p)
	}
	if err == nil && !p.GPU {
		err = planWithoutGPU(c, root, &p)
	}
	return p, err
}

// planDriver decides whether the container gets the driver and, if so, everything that it gets. If
// it sets p.GPU to false, the container starts without the driver.
func planDriver(c Container, img *image.Root, ask Ask, p *Plan) error {
	h, err := host.Discover(c.Config.Host)
	if errors.Is(err, device.ErrNoDriver) && startsWithoutDriver(c) {
		p.GPU, p.Grant = false, "no GPU can have been allocated: "+err.Error()
		return nil
	}
	if err != nil {
		return fail(Precondition, "%s: %w", c.Request.Reason, err)
	}
	p.DriverVersion, p.Platform = h.DriverVersion, h.Platform
	granted, err := grantDevices(c, h, ask, p)
	if err != nil || !p.GPU {
		return err
	}
	files, err := driverFiles(c, h)
	if err != nil {
		return err
	}
	if err := files.Check(granted.request.Capabilities); err != nil {
		return fail(Precondition, "%w", h.AdviseFiles(err))
	}
	p.files = files.For(granted.request.Capabilities)
	for _, m := range files.Missing {
		if capability, name, _ := strings.Cut(m, ": "); granted.request.Has(capability) {
			p.note("%s: this host's driver has no %s", capability, name)
		}
	}
	if err := planNodes(c, h, granted, files, p); err != nil {
		return err
	}
	addClassFiles(c, p)
	if err := planMemoryLimits(c, p); err != nil {
		return err
	}
	if err := planMask(c, h, granted, p); err != nil {
		return err
	}
	planRemovals(c, files, p)
	root, err := readMounts(c, img, p)
	if err == nil {
		err = planFiles(c, h, root, granted, p)
	}
	if img.Err() != nil {
		err = fail(Internal, "read the image: %w", img.Err())
	}
	return err
}

// planWithoutGPU decides what is done for a container that gets no GPU from the shim. If its
// specification has nodes of the driver anyway, for example from a device plugin, the container
// gets the mask, which shows the GPUs of these nodes: a pod's author can override the plugin's
// value with NVIDIA_VISIBLE_DEVICES=void.
func planWithoutGPU(c Container, img *image.Root, p *Plan) error {
	if !c.Input.Container.DriverNodes {
		return nil // the usual case: the container asks and is granted nothing
	}
	h, err := host.Discover(c.Config.Host)
	if errors.Is(err, device.ErrNoDriver) {
		return nil
	}
	var g grant
	if err == nil {
		g.set, err = h.Given(c.Input.Container.Nodes)
	}
	if err != nil {
		return fail(Precondition, "the container's specification has nodes of the NVIDIA driver: %w", err)
	}
	g.gpus = h.Visible(g.set)
	if err := planMask(c, h, g, p); err != nil || !p.Proc.Masked {
		return err
	}
	root, err := readMounts(c, img, p)
	if err != nil {
		return err
	}
	return checkProc(root, p)
}

// startsWithoutDriver reports whether a container starts without a GPU on a host without a driver:
// nothing can have been allocated to it there, and a request by its image is not a grant.
func startsWithoutDriver(c Container) bool {
	if !c.Input.Container.Kubernetes {
		return false
	}
	r := c.Request
	if r.Source == request.FromAnnotations {
		other, err := c.Input.WithoutAnnotations(c.Config)
		if err == nil && !other.Driver {
			return true
		}
	}
	return !r.NamesDevices() && r.Source != request.FromCDI && policy.EnvironmentGrants(c.Config.Policy, c.Input.Container) == ""
}

// filesName is the file in the state directory that holds the list of the driver's files.
const filesName = "driver.json"

// driverFiles returns the driver's files: the list kept in the state directory if these files are
// unchanged, otherwise the result of a new search, which is then kept. Between an upgrade of the
// driver's packages and the reboot, the host has only files of a driver that is not loaded: then the
// kept list is returned as Replaced, because a view may still hold the loaded driver's files.
func driverFiles(c Container, h host.Host) (driver.Files, error) {
	st, err := state.Open(c.Config.Host.StateDir, c.Config.Host.ReadOnlyState)
	if err != nil {
		return driver.Files{}, fail(Precondition, "%w", err)
	}
	var kept driver.Files
	if st.Load(filesName, &kept) && kept.Fresh(h.Config, h.DriverVersion) {
		return kept, nil
	}
	files, err := h.DriverFiles()
	if err != nil {
		return driver.Files{}, fail(Precondition, "%w", err)
	}
	if kept.Version != "" && kept.Version == h.DriverVersion && kept.Root == files.Root && len(files.Others) > 0 {
		if err := files.Check([]string{config.Utility}); err != nil && kept.Check([]string{config.Utility}) == nil {
			kept.Replaced = err.Error()
			return kept, nil
		}
	}
	if err := st.Store(filesName, &files); err != nil {
		return driver.Files{}, fail(Internal, "keep the list of driver files: %w", err)
	}
	return files, nil
}
