package place

import (
	"path"
	"slices"
	"strings"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host/driver"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/image"
)

// Bind is a file or directory of the host that is mounted read-only in the container.
type Bind struct {
	Source      string `json:"source"`
	Destination string `json:"destination"`
	// Name is the path in the view of a file that is there, which has no Source. Made is true for a
	// file of the bundle.
	Name string `json:"-"`
	Made bool   `json:"-"`
}

// directNames are also in the image's own library directory: programs open these files by path, or
// the image has no loader cache.
var directNames = []string{"libcuda.so.1", "libcuda.so", "libnvidia-ml.so.1"}

// directPrograms are also in /usr/bin: scripts must find them whatever their PATH is.
var directPrograms = []string{"nvidia-smi"}

// Beside lists the libraries and programs to mount outside the view: the few that programs look for
// elsewhere, and the libraries that are in no view. every is true if the loader's cache cannot list
// the view: then all libraries are mounted. A library is named by its link without a version, if it
// has one: that path stays valid after a driver upgrade.
func Beside(files driver.Files, img image.Image, every bool) (list []Bind) {
	for _, l := range files.Libraries {
		put := func(name, dest string) {
			if l.Dir == "" {
				list = append(list, Bind{Name: nameInView(l, name), Destination: dest})
			} else {
				list = append(list, Bind{Source: l.Path, Destination: dest})
			}
		}
		if l.Dir != "" { // in no view, but at its own path
			put(l.Name, path.Join(l.Dir, l.Name))
		}
		dir := img.LibDir
		if l.Bits == 32 {
			dir = img.LibDir32
		}
		if dir == "" {
			continue
		}
		if name, ok := PluginName(l); ok {
			put(name, path.Join(pluginDir(dir), l.Subdir, name))
			continue
		}
		for _, name := range loaderNames(l) {
			if every || l.Bits == 64 && slices.Contains(directNames, name) {
				put(name, path.Join(dir, name))
			}
		}
	}
	for _, b := range files.Binaries {
		if slices.Contains(directPrograms, b.Name) {
			list = append(list, Bind{Name: path.Join(viewBin, b.Name), Destination: path.Join("/usr/bin", b.Name)})
		}
	}
	return list
}

// withoutCompat returns the files without the libraries that a forward compatibility package
// replaces: no search path may find the host's libraries first.
func withoutCompat(files driver.Files) driver.Files {
	files.Libraries = slices.DeleteFunc(slices.Clone(files.Libraries), func(l driver.Library) bool {
		stem, _, _ := strings.Cut(l.Name, ".so")
		return l.Bits == 64 && slices.Contains(compatNames, stem)
	})
	return files
}

// compatNames are the libraries that belong to one libcuda: a forward compatibility package
// replaces all of them. The set is fixed, so that an image cannot choose among many views.
var compatNames = []string{
	"libcuda", "libcudadebugger", "libnvidia-nvvm", "libnvidia-nvvm70", "libnvidia-pkcs11",
	"libnvidia-pkcs11-openssl3", "libnvidia-ptxjitcompiler", "libnvidia-tileiras",
}

// xorgModules returns the directory in which the X server of an image looks for modules: in
// /usr/lib64 if the libraries are in lib64 (Fedora, RHEL, openSUSE), otherwise in /usr/lib, even
// with Debian's multiarch directories.
func xorgModules(img image.Image) string {
	if path.Base(img.LibDir) == "lib64" {
		return "/usr/lib64/xorg/modules"
	}
	return "/usr/lib/xorg/modules"
}

// pluginDir returns the directory below which the image's libraries look for plugins. dir is the
// directory of the C library of the same architecture. Plugins are in /usr even if the C library is
// not (Debian before the merge of /usr, Alpine).
func pluginDir(dir string) string {
	if dir == "/lib" || strings.HasPrefix(dir, "/lib64") || strings.HasPrefix(dir, "/lib32") || strings.HasPrefix(dir, "/lib/") {
		return "/usr" + dir
	}
	return dir
}

// PluginName returns the name by which a consuming library opens the driver's plugin in a directory
// below the image's own library directory: libvdpau by SONAME, Mesa's libgbm by the DRM driver's
// name.
func PluginName(l driver.Library) (string, bool) {
	switch l.Subdir {
	case "vdpau":
		return l.SOName, l.SOName != ""
	case "gbm":
		return l.Name, true
	}
	return "", false
}
