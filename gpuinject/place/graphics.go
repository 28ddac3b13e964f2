package place

import (
	"cmp"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host/device"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host/driver"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/image"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/verdict"
)

// maxProfileMinor is the greatest minor number that fits into the mask of an application profile.
// The driver's README documents 32 bits; NVIDIA's own container tools write 64.
const maxProfileMinor = 63

// profile returns an application profile for the driver that makes EGL, and Vulkan behind it, list
// only the container's GPUs. The kernel denies access to the others anyway, but a program that uses
// the first listed GPU would fail. A MIG device is listed as its GPU. The result is nil if there is
// nothing to write: a host whose GPUs have no minor numbers has no other GPUs to hide.
//
// The format follows the chapter on application profiles in the driver's README: a rule with an
// empty pattern applies to every program.
func profile(g Given, log *verdict.Log) []byte {
	draws := g.Request.Has(config.Graphics) || g.Request.Has(config.Display)
	if !draws || len(g.GPUs) == 0 || g.GPUs[0].Minor < 0 {
		return nil
	}
	var mask uint64
	for _, gpu := range g.GPUs {
		if gpu.Minor > maxProfileMinor {
			log.Note("EGL may list GPUs that cannot be opened: a minor number above %d has no place in an application profile", maxProfileMinor)
			return nil
		}
		mask |= 1 << gpu.Minor
	}
	log.Decide("EGL", "lists the container's GPUs only", "by an application profile with their minor numbers")
	return fmt.Appendf(nil, `{
    "profiles": [{"name": "_container_", "settings": ["EGLVisibleDGPUDevices", 0x%x]}],
    "rules": [{"pattern": [], "profile": "_container_"}]
}
`, mask)
}

// needsX11 are libraries that libGLX_nvidia is linked to, which is also the driver of Vulkan.
var needsX11 = []string{"libX11.so.6", "libXext.so.6"}

// noteGraphics notes what a container that draws lacks: slim images have no libraries of X11, and
// the node of the modeset module comes with the capability display.
func noteGraphics(root RootFS, img image.Image, files driver.Files, display bool) (log verdict.Log) {
	isGLX := func(l driver.Library) bool { return strings.HasPrefix(l.Name, "libGLX_nvidia.so.") && l.Bits == 64 }
	if img.LibC != image.GLibC || img.LibDir == "" || !slices.ContainsFunc(files.Libraries, isGLX) {
		return log
	}
	missing := slices.DeleteFunc(slices.Clone(needsX11), func(name string) bool { return root.IsFile(path.Join(img.LibDir, name)) })
	if len(missing) > 0 {
		log.Note("GLX and Vulkan need %s, not in %s of the image: install them (Debian: libx11-6, libxext6); EGL without a display works", strings.Join(missing, ", "), img.LibDir)
	}
	if !display {
		log.Note("no /dev/nvidia-modeset without the capability display: Vulkan's swapchains need it")
	}
	return log
}

// filesInBundle makes the files in the bundle for one container, and lists their mounts.
func filesInBundle(c Container, g Given) (list []Bind, ch Changes) {
	if data := profile(g, &ch.Log); data != nil {
		ch.BundleFiles = []image.File{{Path: profileName, Data: data}}
		list = append(list, Bind{Source: bundlePath(c, profileName), Destination: profileDest, Made: true})
	}
	if ch.ByPath = byPathLinks(g.Nodes); len(ch.ByPath) > 0 {
		// This mount comes after the mount of /dev. runc creates the nodes of linux.devices after
		// all mounts, so the links lead to existing nodes.
		list = append(list, Bind{Source: bundlePath(c, byPathName), Destination: byPathDest, Made: true})
	}
	return list, ch
}

// byPathLinks returns the links of /dev/dri/by-path to the container's own nodes.
func byPathLinks(nodes []device.Node) map[string]string {
	links := map[string]string{}
	for _, n := range nodes {
		if n.Link != "" && path.Dir(n.Path) == path.Dir(byPathDest) {
			links[n.Link] = "../" + path.Base(n.Path)
		}
	}
	return links
}

// bundlePath returns the path of a file in the bundle, or a placeholder if the plan has no bundle.
func bundlePath(c Container, name string) string {
	return path.Join(cmp.Or(c.Bundle.Dir, "<bundle>"), name)
}

// dataDest returns the destination of a data file in an image, or "" if the image has no use for
// it. If the image has its own copy in another place, the file covers that copy: with two manifests
// of the same driver, each GPU would be listed twice. Further copies in the image cannot be
// removed, and mounting over one would list the GPU once more.
func dataDest(d driver.File, root RootFS, img image.Image, log *verdict.Log) string {
	if !path.IsAbs(d.Dest) {
		return path.Join(xorgModules(img), d.Dest)
	}
	needed := len(d.Needs) == 0 || slices.ContainsFunc(d.Needs, func(name string) bool {
		if !path.IsAbs(name) {
			name = path.Join(img.LibDir, name)
		}
		return root.IsFile(name)
	})
	if !needed {
		log.Decide(d.Dest, "not given", "this host has none, and the image has none of %s to read one that is made", strings.Join(d.Needs, ", "))
		return ""
	}
	dest := d.Dest
	copies := slices.DeleteFunc(slices.Clone(d.Copies), func(name string) bool { return !root.IsFile(name) })
	if len(copies) > 0 && !root.IsFile(dest) {
		dest = copies[0]
		log.Decide(dest, "covered", "the image has a file of its own there: with one at %s besides, each GPU would be listed twice", d.Dest)
	}
	if d.Data != nil {
		log.Decide(dest, "made", "this host has the library and no such file that a container can use")
	}
	at, _ := root.Target(dest) // place returns the error
	copies = slices.DeleteFunc(copies, func(name string) bool {
		other, _ := root.Target(name)
		return other == at
	})
	if len(copies) > 0 {
		log.Note("the image has %s besides %s: each GPU may be listed more than once", strings.Join(copies, ", "), dest)
	}
	return dest
}
