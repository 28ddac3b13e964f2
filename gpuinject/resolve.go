package gpuinject

import (
	"errors"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host/device"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host/driver"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/image"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/policy"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/request"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/state"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/probe"
)

// Ask puts questions to the probe, all at once.
type Ask func(probe.Questions) probe.Answers

// Resolve decides everything that will be done for a container whose image is mounted at root. It
// changes nothing but what the shim itself keeps under its state directory, unless that is
// read-only. With an error the Plan has the decisions that led to it.
func Resolve(c Container, root *image.Root, ask Ask) (Plan, error) {
	p := newPlan(c)
	if err := planHooks(c, &p); err != nil {
		return p, err
	}
	h, err := host.Discover(c.Config.Host)
	if errors.Is(err, device.ErrNoDriver) && startsWithoutDriver(c) {
		p.GPU, p.Grant = false, "no GPU can have been allocated: "+err.Error()
		return p, nil
	}
	if err != nil {
		return p, fail(Precondition, "%s: %w", c.Request.Reason, err)
	}
	p.DriverVersion, p.Platform = h.DriverVersion, h.Platform
	granted, err := grantDevices(c, h, ask, &p)
	if err != nil || !p.GPU {
		return p, err
	}
	files, err := driverFiles(c, h)
	if err != nil {
		return p, err
	}
	if err := files.Check(granted.request.Capabilities); err != nil {
		return p, fail(Precondition, "%w", err)
	}
	mine := files.For(granted.request.Capabilities)
	nodes, err := planNodes(c, h, granted, files, &p)
	if err != nil {
		return p, err
	}
	addClassFiles(c, &mine, &p)
	if err := planMemoryLimits(c, &p); err != nil {
		return p, err
	}
	if err := planMask(c, h, granted, &p); err != nil {
		return p, err
	}
	err = planFiles(c, h, root, granted, nodes, files, mine, &p)
	if root.Err() != nil {
		err = fail(Internal, "read the image: %w", root.Err())
	}
	return p, err
}

// startsWithoutDriver reports whether a container starts without a GPU on a host without a driver:
// nothing can have been allocated to it there, and the wish of its image is no grant.
func startsWithoutDriver(c Container) bool {
	if !c.Said.Container.Kubernetes {
		return false
	}
	r := c.Request
	if r.Source == request.FromAnnotations {
		other, err := c.Said.WithoutAnnotations(c.Config)
		if err == nil && !other.Driver {
			return true
		}
	}
	return !r.NamesDevices() && r.Source != request.FromCDI && policy.EnvironmentGrants(c.Config.Policy, c.Said.Container) == ""
}

// driverFiles returns the driver's files: those kept under the state directory if they are still
// there unchanged, else the result of a new search, which is kept.
func driverFiles(c Container, h host.Host) (driver.Files, error) {
	st, err := state.Open(c.Config.Host.StateDir, c.Config.Host.ReadOnlyState)
	if err != nil {
		return driver.Files{}, fail(Precondition, "%w", err)
	}
	var kept driver.Files
	if !st.Load(host.FilesName, &kept) {
		kept = driver.Files{}
	}
	files, changed, err := h.DriverFiles(kept)
	if err != nil {
		return driver.Files{}, fail(Precondition, "%w", err)
	}
	if changed {
		if err := st.Store(host.FilesName, &files); err != nil {
			return driver.Files{}, fail(Internal, "keep the list of driver files: %w", err)
		}
	}
	return files, nil
}
