package place

import (
	"os"
	"path"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/devnode"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host/device"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host/driver"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/request"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/sockets"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/view"
)

// RemoveReplaced decides which mounts and rules to remove from the specification: those that CDI
// added for what the shim provides itself, and the device list if runc could not mount it. all
// holds the files of this host's driver, if ReplacesMounts, nodes the nodes that the container gets.
func RemoveReplaced(c Container, all driver.Files, nodes []device.Node) (ch Changes) {
	ch.Edits.RemoveMount = func(m specs.Mount) bool {
		return isCDIMount(c, all, m) || c.Input.Container.UserNamespace && isMappedListMount(m) || isDriverDir(all, m)
	}
	if slices.ContainsFunc(c.Bundle.Spec.Mounts, func(m specs.Mount) bool { return isDriverDir(all, m) }) {
		ch.Decide("mount at "+view.Dir, "replaced", "it is this host's directory of the driver")
	}
	if !c.Input.EditedByCDI {
		return ch
	}
	// CDI's device rules allow mknod.
	ch.Edits.RemoveRule = func(r specs.LinuxDeviceCgroup) bool { // guard: hooks: CDI's mknod rules removed
		if !r.Allow || r.Type != "c" || r.Major == nil || r.Minor == nil || !strings.Contains(r.Access, "m") {
			return false
		}
		number := devnode.Number{Major: *r.Major, Minor: *r.Minor}
		return slices.ContainsFunc(nodes, func(n device.Node) bool { return n.Number() == number })
	}
	for _, m := range c.Bundle.Spec.Mounts {
		if isCDIMount(c, all, m) && isSocketMount(m) {
			ch.Note("not mounted: %s, which CDI gives every container; see container.sockets", m.Destination)
		}
	}
	return ch
}

// ReplacesMounts reports whether RemoveReplaced needs all files of the driver for this container.
func ReplacesMounts(c Container) bool {
	return c.Input.EditedByCDI || slices.ContainsFunc(c.Bundle.Spec.Mounts, func(m specs.Mount) bool { return path.Clean(m.Destination) == view.Dir })
}

// isCDIMount reports whether a mount comes from NVIDIA's CDI specification: a file of this host's
// driver, with the destination and options that nvidia-ctk writes, or request.VoidMount. A user's
// own mount of the same file has other options.
func isCDIMount(c Container, files driver.Files, m specs.Mount) bool {
	if !c.Input.EditedByCDI || !path.IsAbs(m.Source) || !slices.Contains(m.Options, "nosuid") || !slices.Contains(m.Options, "nodev") || !isBind(m) {
		return false
	}
	source, dest := path.Clean(m.Source), path.Clean(m.Destination)
	if isSocketMount(m) {
		return (dest != sockets.MPSDir || !sockets.NamesOwnMPS(c.Host, c.Input.Env[sockets.EnvMPS])) && (files.InRoot(source) == dest || source == dest)
	}
	if source == "/dev/null" && dest == request.VoidMount {
		return true
	}
	return slices.Contains(m.Options, "ro") && files.IsMounted(source, dest)
}

// isDriverDir reports whether a read-only mount at view.Dir is this host's directory of the driver, as
// GKE's device plugin mounts it into every container that has a GPU. The view takes its place.
func isDriverDir(files driver.Files, m specs.Mount) bool {
	if path.Clean(m.Destination) != view.Dir || !path.IsAbs(m.Source) || !slices.Contains(m.Options, "ro") || !isBind(m) {
		return false
	}
	source, err := os.Stat(m.Source)
	return err == nil && slices.ContainsFunc(files.Libraries, func(l driver.Library) bool {
		if l.SOName != "libcuda.so.1" {
			return false
		}
		dir, err := os.Stat(path.Dir(path.Dir(l.Path))) // above lib64
		return err == nil && os.SameFile(dir, source)
	})
}

// isSocketMount reports whether a mount has the form of CDI's mount of a daemon's socket.
func isSocketMount(m specs.Mount) bool { return sockets.IsMount(path.Clean(m.Destination), m.Options) }

// isMappedListMount reports whether a mount belongs to the device list and has id mappings for a
// user namespace. runc cannot create it: its source, /dev/null, is on devtmpfs, which does not
// support idmapped mounts, so the container would not start (containerd maps every mount of such a
// pod). The shim has already read the list, and nothing in a container reads it.
func isMappedListMount(m specs.Mount) bool {
	return len(m.UIDMappings)+len(m.GIDMappings) > 0 && path.Clean(m.Source) == "/dev/null" &&
		strings.HasPrefix(path.Clean("/"+m.Destination), request.DeviceListDir+"/")
}
