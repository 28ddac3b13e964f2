package gpuinject

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host/driver"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/ldcache"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/request"
)

// fileOptions are those of a single driver file. Libraries and programs are mapped
// executable, so never noexec.
var fileOptions = []string{"bind", "ro", "nosuid", "nodev", "rprivate"}

// nodeOptions are those of a device node that is bound.
var nodeOptions = []string{"bind", "nosuid", "noexec", "rprivate"}

// viewOptions are those of the view, which is a tree of mounts.
var viewOptions = []string{"rbind", "ro", "nosuid", "nodev", "rprivate"}

// directNames are in the image's own library directory as well: programs look for
// these files by path, or there is no cache to find them by.
var directNames = []string{"libcuda.so.1", "libcuda.so", "libnvidia-ml.so.1"}

// directPrograms are in /usr/bin as well: scripts call them whatever PATH says.
var directPrograms = []string{"nvidia-smi"}

// mounts are what the container gets mounted: the view, and what is not in it. files
// are those of the view that it finds at other paths as well, for place: a handful of
// libraries and programs, and what consuming libraries open at fixed paths.
func (j *Job) mounts(viewRoot string, img *ldcache.Image, leaveOut []string) (mounts []specs.Mount, files []placement, err error) {
	volumes := j.volumes()
	m, ok := j.covering(volumes, ViewDir)
	if !ok {
		m, ok = j.hidden(volumes)
	}
	if ok {
		return nil, nil, fail(Invalid, "the container mounts %s at %s, over %s where the NVIDIA driver goes: remove that mount", request.Quote(m.Source), request.Quote(m.Destination), ViewDir)
	}
	if j.target(ViewDir) == "/" {
		return nil, nil, fail(Invalid, "%s of the image is its root directory, by a link: the NVIDIA driver cannot be mounted there", ViewDir)
	}
	mounts = []specs.Mount{{Source: viewRoot, Destination: ViewDir, Type: "bind", Options: viewOptions}}
	free := func(dest string) bool {
		// A volume of the container's own there, or around it: nothing may be made
		// in that (T53), and the loader finds the driver without.
		m, ok := j.covering(volumes, dest)
		if ok {
			j.Plan.note(fmt.Sprintf("not mounted at %s: the container mounts %s there", dest, request.Quote(m.Destination)))
		}
		return !ok
	}
	bind := func(source, dest string) {
		if free(dest) {
			mounts = append(mounts, specs.Mount{Source: source, Destination: dest, Type: "bind", Options: fileOptions})
		}
	}
	place := func(name, dest string) {
		if free(dest) {
			files = append(files, placement{path.Join(viewRoot, name), path.Join(ViewDir, name), dest})
		}
	}
	for _, l := range j.files.Libraries {
		dir := img.LibDir
		if l.Bits == 32 {
			dir = img.LibDir32
		}
		if dir == "" || l.Bits == 64 && suppliedBy(l, leaveOut) {
			continue
		}
		put := func(name, dest string) {
			if l.Dir != "" {
				bind(l.Path, dest)
			} else {
				place(libraryIn(l, name), dest)
			}
		}
		if name, ok := pluginName(l); ok {
			put(name, path.Join(pluginDir(dir), l.Subdir, name))
			continue
		}
		for _, name := range directNames {
			if l.Bits == 64 && (name == l.SOName || slices.Contains(l.Links, name)) {
				put(name, path.Join(dir, name))
			}
		}
	}
	for _, b := range j.files.Binaries {
		if slices.Contains(directPrograms, b.Name) {
			place(path.Join(viewBin, b.Name), path.Join("/usr/bin", b.Name))
		}
	}
	for _, l := range j.files.Libraries {
		if l.Dir != "" {
			bind(l.Path, path.Join(l.Dir, l.Name))
		}
	}
	for _, d := range j.files.Data {
		dest := j.dataDest(d, img)
		j.explainData(d, dest)
		switch {
		case dest == "":
		case d.Direct:
			bind(d.Path, dest)
		default:
			place(dataIn(d), dest)
		}
	}
	for _, m := range j.desktopMounts() {
		bind(m.source, m.dest)
	}
	return append(mounts, j.socketMounts(volumes)...), files, nil
}

// pluginName is the name by which a consuming library opens the driver's plugin
// in a directory below the image's own library directory: libvdpau by SONAME,
// Mesa's libgbm by the DRM driver's name.
func pluginName(l driver.Library) (string, bool) {
	switch l.Subdir {
	case "vdpau":
		return l.SOName, l.SOName != ""
	case "gbm":
		return l.Name, true
	}
	return "", false
}

// placed is a mount of the container's own of what outlives it, and where in the image
// that really goes.
type placed struct {
	specs.Mount
	at string
}

// covering returns the volume of the container that a destination is at or below.
// Both are taken where the links of the image lead, as runc does: in most images /lib
// is /usr/lib.
func (j *Job) covering(volumes []placed, dest string) (specs.Mount, bool) {
	if len(volumes) == 0 {
		return specs.Mount{}, false
	}
	dest = j.target(dest)
	for _, v := range volumes {
		if v.at == "/" || below(dest, v.at) {
			return v.Mount, true
		}
	}
	return specs.Mount{}, false
}

// hidden returns a volume that nobody could see below the view.
func (j *Job) hidden(volumes []placed) (specs.Mount, bool) {
	if len(volumes) == 0 {
		return specs.Mount{}, false
	}
	view := j.target(ViewDir)
	for _, v := range volumes {
		if below(v.at, view) {
			return v.Mount, true
		}
	}
	return specs.Mount{}, false
}

// below tells whether name is dir or inside it.
func below(name, dir string) bool { return name == dir || strings.HasPrefix(name, dir+"/") }

// target is where a destination really is in the image.
func (j *Job) target(dest string) string {
	if j.targets == nil {
		return path.Clean("/" + dest)
	}
	return j.targets.Of(dest)
}

// ephemeral are the types of mounts that end with the container.
var ephemeral = []string{"tmpfs", "proc", "sysfs", "devpts", "mqueue", "cgroup", "cgroup2", "ramfs"}

// volumes are the container's own mounts of what outlives it: binds, and file
// systems of whatever type. Each is looked up in the image once, however many
// destinations are compared with it.
func (j *Job) volumes() []placed {
	var out []placed
	for _, m := range j.bundle.Spec.Mounts {
		bind := m.Type == "bind" || slices.Contains(m.Options, "bind") || slices.Contains(m.Options, "rbind")
		if (bind || !slices.Contains(ephemeral, m.Type)) && !j.ours(m) && !j.cdiMount(m) {
			out = append(out, placed{m, j.target(m.Destination)})
		}
	}
	return out
}

// ours tells a mount that an earlier injection into the same configuration made.
func (j *Job) ours(m specs.Mount) bool {
	return strings.HasPrefix(m.Source, path.Join(j.Config.Host.StateDir, "view")+"/") ||
		path.Dir(m.Source) == j.bundle.Dir && slices.Contains(bundleFiles, path.Base(m.Source))
}
