package gpuinject

import (
	"cmp"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/bundle"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host/driver"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/ldcache"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/request"
)

// What a container that draws gets from its bundle, where it is made for that
// container alone and goes when it does.
const (
	profileName = "application-profile.conf"
	byPathName  = "dri-by-path"
	cacheName   = "ld.so.cache"

	profileDest = "/etc/nvidia/nvidia-application-profiles-rc.d/10-container.conf"
	byPathDest  = "/dev/dri/by-path"
)

var bundleFiles = []string{profileName, byPathName, cacheName}

// maxProfileMinor is the greatest minor number that fits into the mask. The driver's
// README speaks of 32 bits; NVIDIA's own container tools write 64.
const maxProfileMinor = 63

// draws tells whether the container asks for graphics in some form.
func (j *Job) draws() bool {
	return j.Request.Has(request.Graphics) || j.Request.Has(request.Display)
}

// profile is the application profile of the driver that makes EGL, and Vulkan behind
// it, list the container's GPUs only: the kernel refuses the others all the same, but
// a program that takes the first of the list would fail. MIG devices are in it by
// their GPU. It is nil where there is nothing to write.
//
// The form is that of the chapter on application profiles in the driver's README: a
// rule whose pattern is empty applies to every program.
func (j *Job) profile() []byte {
	if !j.profiled() {
		return nil
	}
	var mask uint64
	for _, g := range j.gpus {
		if g.Minor > maxProfileMinor {
			return nil
		}
		mask |= 1 << g.Minor
	}
	return fmt.Appendf(nil, `{
    "profiles": [{"name": "_container_", "settings": ["EGLVisibleDGPUDevices", 0x%x]}],
    "rules": [{"pattern": [], "profile": "_container_"}]
}
`, mask)
}

// profiled tells whether there are GPUs to make a profile of: those of WSL2 and of a
// Tegra have no minor numbers, and nothing beside them to hide.
func (j *Job) profiled() bool { return j.draws() && len(j.gpus) > 0 && j.gpus[0].Minor >= 0 }

// links are those of /dev/dri/by-path: to the container's own nodes only.
func (j *Job) links() map[string]string {
	links := map[string]string{}
	for _, n := range j.nodes {
		if n.Link != "" && path.Dir(n.Path) == path.Dir(byPathDest) {
			links[n.Link] = "../" + path.Base(n.Path)
		}
	}
	return links
}

// from is a file or directory of the host and where it goes.
type from struct{ source, dest string }

// desktopMounts are the mounts of what writeDesktop writes. They are in config.json
// after /dev, which is a mount itself, and runc makes the nodes of linux.devices after
// all mounts: so links in a mount at /dev/dri/by-path lead to them.
func (j *Job) desktopMounts() (mounts []from) {
	// A plan can be of no bundle.
	dir := cmp.Or(j.bundle.Dir, "<bundle>")
	if j.profile() != nil {
		mounts = append(mounts, from{path.Join(dir, profileName), profileDest})
		j.explain("EGL", "lists the container's GPUs only", "by an application profile with their minor numbers")
	} else if j.profiled() {
		j.Plan.note(fmt.Sprintf("EGL may list GPUs that cannot be opened: a minor number above %d has no place in an application profile", maxProfileMinor))
	}
	if len(j.links()) > 0 {
		mounts = append(mounts, from{path.Join(dir, byPathName), byPathDest})
	}
	return mounts
}

// writeDesktop makes the files of desktopMounts.
func (j *Job) writeDesktop() error {
	if data := j.profile(); data != nil {
		if err := bundle.WriteFile(j.bundle.Dir, profileName, data, 0o644); err != nil {
			return fail(Internal, "%w", err)
		}
	}
	if links := j.links(); len(links) > 0 {
		if err := bundle.WriteLinks(j.bundle.Dir, byPathName, links); err != nil {
			return fail(Internal, "%w", err)
		}
	}
	return nil
}

// dataDest is where a data file goes in this image, "" where the image has no use
// for it.
func (j *Job) dataDest(d driver.File, img *ldcache.Image) string {
	if !path.IsAbs(d.Dest) {
		return path.Join(xorgModules(img), d.Dest)
	}
	if j.image == nil {
		return d.Dest
	}
	if len(d.Needs) > 0 && !slices.ContainsFunc(d.Needs, func(name string) bool {
		if !path.IsAbs(name) {
			name = path.Join(img.LibDir, name)
		}
		return j.inImage(name)
	}) {
		return ""
	}
	if len(d.Copies) == 0 || j.inImage(d.Dest) {
		j.noteCopies(d, d.Dest)
		return d.Dest
	}
	for _, name := range d.Copies {
		if j.inImage(name) {
			j.noteCopies(d, name)
			return name
		}
	}
	return d.Dest
}

// inImage tells whether the image has a file of this name. Most images lack most of the
// directories in question, each of which is looked up once.
func (j *Job) inImage(name string) bool {
	return j.targets.There(path.Dir(name)) && j.image.IsFile(name)
}

// explainData enters what became of a data file, where it is not simply the host's.
func (j *Job) explainData(d driver.File, dest string) {
	switch {
	case dest == "":
		j.explain(d.Dest, "not given", "this host has none, and the image has none of %s to read one that is made", strings.Join(d.Needs, ", "))
	case d.Data != nil && d.Path == "":
		j.explain(dest, "made", "this host has the library and no such file")
	case d.Data != nil:
		j.explain(dest, "rewritten", "%s of this host names libraries as no container finds them", d.Path)
	}
	if slices.Contains(d.Copies, dest) {
		j.explain(dest, "covered", "the image has a file of its own there: with one at %s besides, each GPU would be listed twice", d.Dest)
	}
}

// noteCopies says what else the image has of a file that goes to dest. Nothing can be
// taken out of an image, and a mount over it would list the same once more.
func (j *Job) noteCopies(d driver.File, dest string) {
	var more []string
	for _, name := range d.Copies {
		if name != dest && j.inImage(name) && j.image.Target(name) != j.image.Target(dest) {
			more = append(more, name)
		}
	}
	if len(more) > 0 {
		j.Plan.note(fmt.Sprintf("the image has %s besides %s: each GPU may be listed more than once", strings.Join(more, ", "), dest))
	}
}

// xorgModules is where the X server of the image looks for modules: in a directory
// beside the libraries where these are in lib64 (Fedora, RHEL, openSUSE), and in
// /usr/lib with everybody else, Debian's multiarch directories included.
func xorgModules(img *ldcache.Image) string {
	if path.Base(img.LibDir) == "lib64" {
		return "/usr/lib64/xorg/modules"
	}
	return "/usr/lib/xorg/modules"
}

// pluginDir is the directory below which libraries of the image that are for the same
// programs as dir, the place of a C library, look for plugins: in /usr also where the C
// library is not (Debian before the merge of /usr, Alpine).
func pluginDir(dir string) string {
	if dir == "/lib" || strings.HasPrefix(dir, "/lib64") || strings.HasPrefix(dir, "/lib32") || strings.HasPrefix(dir, "/lib/") {
		return "/usr" + dir
	}
	return dir
}
