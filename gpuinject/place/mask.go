package place

import (
	"slices"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host/device"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/verdict"
)

// whyUnmasked returns why the container does not get the mask, or "" if it does.
func whyUnmasked(c Container, driverVersion string) string {
	linux := c.Bundle.Spec.Linux
	switch {
	case driverVersion == "":
		return "this host has no NVIDIA kernel module"
	case c.Input.Container.Privileged:
		return "a privileged container can take any mask off"
	// guard: mask: if the host's root is mapped
	case len(linux.MaskedPaths) == 0 && c.Input.Container.UserNamespace && !mapsHostRoot(linux.UIDMappings):
		// The container is meant to run containers itself, which need their own procfs. The kernel
		// refuses to mount one under a mask (mount_too_revealing).
		return "the container asked for an unmasked /proc in a user namespace, where it cannot write these files"
	}
	return ""
}

// mapsHostRoot reports whether the user namespace maps, or may map, the host's root, which owns the
// driver's files in procfs.
func mapsHostRoot(mappings []specs.LinuxIDMapping) bool {
	return len(mappings) == 0 || slices.ContainsFunc(mappings, func(m specs.LinuxIDMapping) bool { return m.HostID == 0 && m.Size > 0 })
}

// checkIsolation refuses a container without its own mount namespace: the mask and the driver would
// be mounted on the host or in another container (T26).
func checkIsolation(c Container) error {
	namespaces := c.Bundle.Spec.Linux.Namespaces
	i := slices.IndexFunc(namespaces, func(ns specs.LinuxNamespace) bool { return ns.Type == specs.MountNamespace })
	if i < 0 || namespaces[i].Path != "" { // guard: isolation: own mount namespace
		return verdict.Invalid("the container has no mount namespace of its own: a GPU container needs one")
	}
	return nil
}

// CheckProc refuses a container whose mask would be on a procfs that is not its own: with
// rootfsPropagation "shared", a mask on a bind of the host's procfs would appear on the host.
func CheckProc(root RootFS, masked bool) error {
	if masked && !root.OwnProc { // guard: isolation: own procfs
		return verdict.Invalid("the container has no procfs of its own at /proc, in which other GPUs could be hidden: mount one")
	}
	return nil
}

// Mask decides what the mask shows of GPUs, the devices of set, and other classes of devices.
func Mask(c Container, driverVersion string, gpus []device.GPU, set device.Set, classes []string) (ch Changes, err error) {
	if err := checkIsolation(c); err != nil {
		return ch, err
	}
	if reason := whyUnmasked(c, driverVersion); reason != "" {
		ch.Decide("/proc/driver", "not masked", "%s", reason)
		return ch, nil
	}
	ch.Proc.Masked = true
	ch.Decide("/proc/driver", "masked", "the container shall see its own devices only")
	for _, gpu := range gpus {
		if gpu.BusID != "" { // otherwise procfs has no entry for it
			ch.Proc.GPUs = append(ch.Proc.GPUs, gpu.BusID)
		}
	}
	rights := set.Capabilities()
	for _, right := range rights {
		ch.Proc.Capabilities = append(ch.Proc.Capabilities, right.File)
	}
	if ch.Mask, err = maskFiles(c.Host.ProcRoot, ch.Proc.GPUs, rights, classes); err != nil {
		return ch, verdict.Precondition("%w", err)
	}
	return ch, nil
}
