package gpuinject

import (
	"errors"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host/device"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host/driver"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/image"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/procmask"
)

// Restrict is Apply for a container that is given nothing here. NVIDIA's hooks, which would give it
// what it asks for, are removed from its specification. If that has nodes of the driver all the
// same, from a device plugin for example, it gets the mask, which shows the GPUs of these nodes: a
// pod's author can set NVIDIA_VISIBLE_DEVICES=void over the plugin's value. The image is left
// alone.
func Restrict(c Container, p Plan, root *image.Root) (Plan, *procmask.Mask, error) {
	if !c.Asks { // Resolve has planned the others
		if err := planHooks(c, &p); err != nil {
			return p, nil, err
		}
	}
	if len(p.RemovedHooks) > 0 {
		err := c.Bundle.Apply(p.edits)
		if err == nil {
			err = c.Bundle.Save()
		}
		if err != nil {
			return p, nil, fail(Internal, "%w", err)
		}
	}
	if !c.Said.Container.DriverNodes {
		return p, nil, nil // the usual case of a container that asks and is granted nothing
	}
	h, err := host.Discover(c.Config.Host)
	if errors.Is(err, device.ErrNoDriver) {
		return p, nil, nil
	}
	var g grant
	if err == nil {
		g.set, err = h.Given(c.Said.Container.Nodes)
	}
	if err != nil {
		return p, nil, fail(Precondition, "the container's specification has nodes of the NVIDIA driver: %w", err)
	}
	g.gpus = h.Visible(g.set)
	if err := planMask(c, h, g, &p); err != nil || !p.Proc.Masked {
		return p, nil, err
	}
	vols, err := findVolumes(c, root, driver.Files{})
	if err == nil {
		err = checkProc(vols, &p)
	}
	if err != nil {
		return p, nil, err
	}
	mask, err := procmask.New(p.mask, c.Bundle.Spec.Linux.MountLabel)
	if err != nil {
		return p, nil, fail(Internal, "%w", err)
	}
	return p, mask, nil
}
