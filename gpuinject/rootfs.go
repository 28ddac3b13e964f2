package gpuinject

import (
	"path"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host/device"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/image"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/request"
)

// volume is a mount of the container's own that outlives it, and where in the image it really goes.
type volume struct {
	specs.Mount
	at string
}

// rootfs is the image of a container, and the container's own mounts over it.
type rootfs struct {
	*image.Root
	// volumes are binds, and file systems of whatever type. Nothing is ever made in them (T53).
	volumes []volume
	// ephemeral end with the container: what the image has below them is not to be seen, while a
	// mount made later is.
	ephemeral []string
	// ownProc is true if the last mount at /proc, which the mask goes on, is a procfs of the
	// container's own.
	ownProc bool
}

// ephemeralTypes are the types of mounts that end with the container.
var ephemeralTypes = []string{"tmpfs", "proc", "sysfs", "devpts", "mqueue", "cgroup", "cgroup2", "ramfs"}

// readMounts resolves the container's own mounts in its image, each once. Those that are removed do
// not count.
func readMounts(c Container, img *image.Root, p *Plan) (rootfs, error) {
	r := rootfs{Root: img}
	for _, m := range c.Bundle.Spec.Mounts {
		at, err := r.Target(m.Destination)
		if err != nil {
			return r, fail(Invalid, "the mount at %s: %w", request.Quote(m.Destination), err)
		}
		if isBelow("/proc", at) {
			r.ownProc = at == "/proc" && m.Type == "proc" && !isBind(m)
		}
		lasting := isBind(m) || !slices.Contains(ephemeralTypes, m.Type)
		if lasting && (isOwnMount(c, m) || p.edits.RemoveMount != nil && p.edits.RemoveMount(m)) {
			continue
		}
		if lasting {
			if err := r.checkLinks(c, m, at); err != nil {
				return r, err
			}
			r.volumes = append(r.volumes, volume{m, at})
		}
		if slices.Contains(ephemeralTypes, m.Type) {
			r.ephemeral = append(r.ephemeral, at)
		}
	}
	return r, nil
}

// checkLinks refuses a mount below a link of another volume: it goes where that link leads when
// runc follows it, perhaps to the driver's files.
func (r rootfs) checkLinks(c Container, m specs.Mount, at string) error {
	for _, above := range r.volumes {
		name, below := strings.CutPrefix(at, above.at+"/")
		if !below {
			continue
		}
		source := above.Source
		if !path.IsAbs(source) {
			source = path.Join(c.Bundle.Dir, source)
		}
		dir, err := image.Open(source)
		if err != nil { // not a directory: nothing is below it
			continue
		}
		target, err := dir.Target(name)
		dir.Close()
		if err != nil || target != "/"+name {
			return fail(Invalid, "the container mounts a volume at %s, by a link in its volume at %s: mount it where that link leads", request.Quote(m.Destination), request.Quote(above.Destination))
		}
	}
	return nil
}

// checkNodes refuses a volume in which runc would make a device node, on the host's disk. The
// host's own directory has the node, and below a bind at /dev runc makes none.
func (r rootfs) checkNodes(nodes []device.Node) error {
	for _, n := range nodes {
		for _, volume := range r.volumes {
			for _, at := range []string{volume.at, path.Clean("/" + volume.Destination)} {
				name, below := strings.CutPrefix(n.Path, at+"/")
				if below && at != "/dev" && path.Join(volume.Source, name) != n.HostPath {
					return fail(Invalid, "the container mounts a volume at %s, where the device node %s goes: mount it elsewhere", request.Quote(volume.Destination), n.Path)
				}
			}
		}
	}
	return nil
}

// isOwnMount reports whether an earlier injection into the same configuration made a mount.
func isOwnMount(c Container, m specs.Mount) bool {
	return strings.HasPrefix(m.Source, path.Join(c.Config.Host.StateDir, "view")+"/") ||
		path.Dir(m.Source) == c.Bundle.Dir && slices.Contains(bundleFileNames, path.Base(m.Source))
}

// covering returns the volume that one of these places of the image is at or below.
func (r rootfs) covering(places ...string) (specs.Mount, bool) {
	for _, volume := range r.volumes {
		if slices.ContainsFunc(places, func(at string) bool { return isBelow(at, volume.at) }) {
			return volume.Mount, true
		}
	}
	return specs.Mount{}, false
}

// hides reports whether the container does not see what the image has at a place.
func (r rootfs) hides(at string) bool {
	return slices.ContainsFunc(r.ephemeral, func(dir string) bool { return isBelow(at, dir) })
}

func isBelow(name, dir string) bool {
	return name == dir || dir == "/" || strings.HasPrefix(name, dir+"/")
}
