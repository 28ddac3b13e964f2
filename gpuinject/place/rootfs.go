package place

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host/device"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/image"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/request"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/verdict"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/view"
)

// Volume is one of the container's own mounts that outlives the container. At is its path in the
// image with links resolved.
type Volume struct {
	specs.Mount
	At string
}

// RootFS is the image of a container, and the container's own mounts over it.
type RootFS struct {
	*image.Root
	// Volumes are binds, and file systems of all types but ephemeralTypes. Nothing is ever created
	// in them (T53).
	Volumes []Volume
	// ephemeral are the paths of mounts that end with the container. They hide what the image has
	// there, but not a mount that is made later.
	ephemeral []string
	// OwnProc is true if the last mount at /proc, on which the mask is mounted, is the container's
	// own procfs.
	OwnProc bool
}

// ephemeralTypes are the types of mounts that end with the container.
var ephemeralTypes = []string{"tmpfs", "proc", "sysfs", "devpts", "mqueue", "cgroup", "cgroup2", "ramfs"}

// ReadMounts resolves each of the container's own mounts in its image once. It skips volumes that an
// earlier injection into the same configuration added, and those for which removed, if any, returns
// true.
func ReadMounts(c Container, img *image.Root, removed func(specs.Mount) bool) (RootFS, error) {
	r := RootFS{Root: img}
	seen := map[string]int{}
	for _, m := range c.Bundle.Spec.Mounts {
		at, err := r.Target(m.Destination)
		if err != nil {
			return r, verdict.Invalid("the mount at %s: %w", request.Quote(m.Destination), err)
		}
		if IsBelow("/proc", at) {
			r.OwnProc = at == "/proc" && m.Type == "proc" && !isBind(m) // guard: isolation: no bind as procfs
		}
		lasting := isBind(m) || !slices.Contains(ephemeralTypes, m.Type)
		if lasting && (isOwnMount(c, m) || removed != nil && removed(m)) {
			continue
		}
		if lasting {
			if err := r.checkLinks(c.Bundle.Dir, m, at, seen); err != nil {
				return r, verdict.Invalid("%w", err)
			}
			seen[at] = len(r.Volumes)
			r.Volumes = append(r.Volumes, Volume{m, at})
		}
		if slices.Contains(ephemeralTypes, m.Type) {
			r.ephemeral = append(r.ephemeral, at)
		}
	}
	return r, nil
}

// checkLinks refuses a mount below a link in another volume: runc would follow that link, perhaps
// to the driver's files. seen has the last volume at each path, by its place in r.Volumes.
//
// A volume hides those that were mounted below it before. So a path leads into the volume above it
// that was mounted last; the way to that one was checked when it was read.
func (r RootFS) checkLinks(bundle string, m specs.Mount, at string, seen map[string]int) error {
	last := -1
	for i, c := range at {
		if n, ok := seen[at[:i]]; ok && c == '/' {
			last = max(last, n)
		}
	}
	if last < 0 {
		return nil
	}
	above := r.Volumes[last]
	source := above.Source
	if !path.IsAbs(source) {
		source = path.Join(bundle, source)
	}
	dir, err := image.Open(source)
	if err != nil { // not a directory: nothing is below it
		return nil
	}
	defer dir.Close()
	name := strings.TrimPrefix(at, above.At)
	if target, err := dir.Target(name); err != nil || target != name { // guard: view: nothing in volumes by a link
		return fmt.Errorf("the container mounts a volume at %s, by a link in its volume at %s: mount it where that link leads", request.Quote(m.Destination), request.Quote(above.Destination))
	}
	return nil
}

// CheckNodes refuses a volume in which runc would create a device node on the host's disk. The
// host's own directory already has the node, and runc creates none below a bind at /dev.
func (r RootFS) CheckNodes(nodes []device.Node) error {
	for _, volume := range r.Volumes {
		for _, at := range []string{volume.At, path.Clean("/" + volume.Destination)} {
			for _, n := range nodes {
				name, below := strings.CutPrefix(n.Path, at+"/")
				// guard: view: no node in volumes
				if below && at != "/dev" && path.Join(volume.Source, name) != n.HostPath {
					return fmt.Errorf("the container mounts a volume at %s, where the device node %s goes: mount it elsewhere", request.Quote(volume.Destination), n.Path)
				}
			}
		}
	}
	return nil
}

// Covering returns the first volume at or above one of these paths of the image.
func (r RootFS) Covering(places ...string) (specs.Mount, bool) {
	for _, volume := range r.Volumes {
		if slices.ContainsFunc(places, func(at string) bool { return IsBelow(at, volume.At) }) {
			return volume.Mount, true
		}
	}
	return specs.Mount{}, false
}

// Hides reports whether an ephemeral mount hides what the image has at a path.
func (r RootFS) Hides(at string) bool {
	return slices.ContainsFunc(r.ephemeral, func(dir string) bool { return IsBelow(at, dir) })
}

// IsBelow reports whether a path is a directory or below it.
func IsBelow(name, dir string) bool {
	return name == dir || dir == "/" || strings.HasPrefix(name, dir+"/")
}

// CacheMountPoint returns where the loader's cache can be mounted, or "": runc follows a link with
// that name, which must not lead to a volume, another file system or the host.
func (r RootFS) CacheMountPoint() string {
	at, err := r.Place(image.CachePath)
	if err == nil && r.Hides(at) {
		return at
	}
	if err == nil {
		at, err = r.Target(image.CachePath)
	}
	_, covered := r.Covering(at)
	// guard: view: no cache mounted into volumes
	if err != nil || covered || r.Hides(at) || r.CheckMountPoint(at) != nil {
		return ""
	}
	return at
}

func isBind(m specs.Mount) bool {
	return m.Type == "bind" || slices.Contains(m.Options, "bind") || slices.Contains(m.Options, "rbind")
}

// isOwnMount reports whether an earlier injection into the same configuration added a mount.
func isOwnMount(c Container, m specs.Mount) bool {
	return view.Holds(c.Host.StateDir, m.Source) ||
		path.Dir(m.Source) == c.Bundle.Dir && slices.Contains(bundleFileNames, path.Base(m.Source))
}
