package driver

import (
	"errors"
	"io"
	"path"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// maxManifest bounds a manifest, in bytes; NVIDIA's have some hundred.
const maxManifest = 64 << 10

// dataKind is a data file of toolkit.md 4.2.
type dataKind struct {
	// dest is the directory of the image that dir goes below; dir is below one of
	// dataDirs on the host.
	dest, dir string
	// names are what distributions call it, the one that the container sees first.
	names        []string
	capabilities []string
	// library is the one that the file makes known to a loader: where the host has it
	// and not the file, content makes the file that NVIDIA's installer would.
	library string
	content func(soname, version string) string
	// also are further directories where loaders look and images may have a copy.
	also []string
	// needs are libraries, absolute or below the image's library directory, without
	// one of which a generated file is of no use.
	needs []string
}

// machine is what distributions call this machine in the names of Vulkan's
// manifests.
var machine, _, _ = strings.Cut(arch.triple, "-")

// dataKinds go to /etc or /usr/share in the container, whatever the host has: the
// directories that libglvnd, the Vulkan loader, OpenCL's loader, the X server and
// OptiX look in as distributions build them. Vulkan's files go to /etc, where
// images that bring copies of their own have them most often: of two manifests the
// loader makes two drivers and lists each GPU twice, as it means to
// (Khronos Vulkan-Loader #493).
var dataKinds = []dataKind{
	{dest: "/usr/share", dir: "glvnd/egl_vendor.d", names: []string{"10_nvidia.json"}, capabilities: graphics,
		library: "libEGL_nvidia", content: platformJSON, also: []string{"/etc/glvnd/egl_vendor.d"}},
	{dest: "/usr/share", dir: eglPlatforms, names: []string{"15_nvidia_gbm.json"}, capabilities: graphics,
		library: "libnvidia-egl-gbm", content: platformJSON, also: []string{"/etc/" + eglPlatforms}},
	{dest: "/usr/share", dir: eglPlatforms, names: []string{"10_nvidia_wayland.json"}, capabilities: graphics,
		library: "libnvidia-egl-wayland", content: platformJSON, also: []string{"/etc/" + eglPlatforms}},
	{dest: "/usr/share", dir: eglPlatforms, names: []string{"09_nvidia_wayland2.json"}, capabilities: graphics,
		library: "libnvidia-egl-wayland2", content: platformJSON, also: []string{"/etc/" + eglPlatforms}},
	{dest: "/usr/share", dir: eglPlatforms, names: []string{"20_nvidia_xcb.json"}, capabilities: graphics,
		library: "libnvidia-egl-xcb", content: platformJSON, also: []string{"/etc/" + eglPlatforms}},
	{dest: "/usr/share", dir: eglPlatforms, names: []string{"20_nvidia_xlib.json"}, capabilities: graphics,
		library: "libnvidia-egl-xlib", content: platformJSON, also: []string{"/etc/" + eglPlatforms}},
	{dest: "/usr/share", dir: "nvidia", names: []string{"nvoptix.bin"}, capabilities: graphics},
	{dest: "/usr/share", dir: "X11/xorg.conf.d", names: []string{"10-nvidia.conf"}, capabilities: graphics},
	{dest: "/usr/share", dir: "X11/xorg.conf.d", names: []string{"nvidia-drm-outputclass.conf"}, capabilities: graphics},
	{dest: "/etc", dir: "vulkan/icd.d", names: []string{"nvidia_icd.json", "nvidia_icd." + machine + ".json"}, capabilities: graphics,
		library: "libGLX_nvidia", content: vulkanJSON, also: []string{"/usr/share/vulkan/icd.d", "/usr/local/share/vulkan/icd.d"}},
	{dest: "/etc", dir: "vulkan/implicit_layer.d", names: []string{"nvidia_layers.json"}, capabilities: graphics,
		also: []string{"/usr/share/vulkan/implicit_layer.d", "/usr/local/share/vulkan/implicit_layer.d"}},
	{dest: "/etc", dir: "vulkansc/icd.d", names: []string{"nvidia_icd_vksc.json", "nvidia_icd." + machine + ".json"}, capabilities: graphics},
	{dest: "/etc", dir: "OpenCL/vendors", names: []string{"nvidia.icd"}, capabilities: compute,
		library: "libnvidia-opencl", content: func(soname, _ string) string { return soname + "\n" },
		// Distributions' loaders, and the one that the CUDA images have.
		needs: []string{"libOpenCL.so.1", "/usr/local/cuda/lib64/libOpenCL.so.1"}},
}

const eglPlatforms = "egl/egl_external_platform.d"

// data finds the files of dataKinds, those for graphics or those for compute.
func (s *search) data(drawing bool) {
	dirs := slices.Clone(dataDirs)
	for _, prefix := range s.prefixes() {
		// Container-Optimized OS has vulkan/icd.d directly below the prefix.
		dirs = append(dirs, path.Join(prefix, "share"), prefix)
	}
	dirs = append(dirs, s.places.data...)
	dirs = slices.DeleteFunc(dirs, func(d string) bool { return !s.exists(d) })
	for _, k := range dataKinds {
		if desktop(k.capabilities) != drawing {
			continue
		}
		f, ok := s.document(k, dirs)
		if !ok {
			f, ok = s.generate(k)
		}
		if ok {
			f.Dest, f.Capabilities, f.Copies = path.Join(k.dest, k.dir, k.names[0]), k.capabilities, k.copies()
			s.files.Data = append(s.files.Data, f)
		}
	}
}

// copies are all places of the file in an image but the one that it is given.
func (k dataKind) copies() []string {
	if len(k.also) == 0 {
		return nil
	}
	var list []string
	for _, dir := range append([]string{path.Join(k.dest, k.dir)}, k.also...) {
		for _, name := range k.names {
			list = append(list, path.Join(dir, name))
		}
	}
	return list[1:]
}

// document finds a file of the host. A manifest that names a library by its place on
// the host is rewritten: in the container the loader finds it by its SONAME.
func (s *search) document(k dataKind, dirs []string) (File, bool) {
	for _, dir := range dirs {
		dir = path.Join(dir, k.dir)
		if !s.exists(dir) {
			continue
		}
		for _, name := range k.names {
			name = path.Join(dir, name)
			host, st, ok := s.file(name)
			if !ok {
				continue
			}
			rewrite := s.rewriter(k.names[0])
			if rewrite == nil {
				return File{Path: host}, true
			}
			text, err := s.read(name, st.Size)
			if err != nil {
				s.refuse(host, err.Error())
				continue
			}
			data, reason := rewrite(text)
			if reason != "" {
				s.refuse(host, reason)
				continue
			}
			return File{Path: host, Data: data}, true
		}
	}
	return File{}, false
}

// read reads a file that file has found.
func (s *search) read(name string, size int64) ([]byte, error) {
	fd, _, err := s.open(name)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	if size > maxManifest {
		return nil, errors.New("is larger than " + strconv.Itoa(maxManifest) + " bytes")
	}
	f, err := reopen(fd)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, maxManifest))
}

// xorgDirs hold modules of the X server: where distributions, NVIDIA's installer
// and Debian's alternatives put them (toolkit.md 4.2).
var xorgDirs = []string{
	"/usr/lib/" + arch.triple + "/nvidia/xorg", "/usr/lib64/nvidia/xorg", "/usr/lib/nvidia/xorg",
	"/usr/lib/xorg/modules/drivers", "/usr/lib/xorg/modules/extensions",
	"/usr/lib/xorg/modules/updates/drivers", "/usr/lib/xorg/modules/updates/extensions",
	"/usr/lib64/xorg/modules/drivers", "/usr/lib64/xorg/modules/extensions",
	"/usr/lib64/xorg/modules/updates/drivers", "/usr/lib64/xorg/modules/updates/extensions",
	"/usr/lib/nvidia/current",
	"/usr/X11R6/lib64/modules/drivers", "/usr/X11R6/lib64/modules/extensions",
	"/usr/X11R6/lib/modules/drivers", "/usr/X11R6/lib/modules/extensions",
}

// xorg finds the modules of the X server.
func (s *search) xorg() {
	dirs := slices.Clone(xorgDirs)
	for dir := range s.used {
		dirs = append(dirs, path.Join(dir, "nvidia/xorg"), path.Join(dir, "xorg/modules/drivers"), path.Join(dir, "xorg/modules/extensions"))
	}
	slices.Sort(dirs[len(xorgDirs):])
	dirs = slices.DeleteFunc(dirs, func(d string) bool { return !s.exists(d) })
	glx := "libglxserver_nvidia.so." + s.files.Version
	for _, m := range []struct {
		dest  string
		names []string
		real  string
	}{
		// The server asks for the names without a version. The versioned one would leave
		// a placeholder for each version in a snapshot that outlives driver upgrades.
		{"drivers/nvidia_drv.so", []string{"nvidia_drv.so"}, ""},
		{"extensions/libglxserver_nvidia.so", []string{"libglxserver_nvidia.so", glx}, glx},
	} {
		if f, ok := s.module(dirs, m.names, m.real); ok {
			s.files.Data = append(s.files.Data, File{Path: f, Dest: m.dest, Capabilities: graphics})
		}
	}
}

// module finds the first of these names that leads to the file real, if that is
// given.
func (s *search) module(dirs, names []string, real string) (string, bool) {
	for _, dir := range dirs {
		for _, name := range names {
			if host, _, ok := s.file(path.Join(dir, name)); ok && (real == "" || path.Base(host) == real) {
				return host, true
			}
		}
	}
	return "", false
}

// wineLibraries are NGX for programs of Windows. Wine's NVAPI looks for them in
// nvidia/wine beside the libGLX_nvidia that is loaded.
var wineLibraries = []string{"nvngx.dll", "_nvngx.dll", "nvngx_dlssg.dll"}

func (s *search) wine() {
	var dirs []string
	for dir := range s.used {
		dirs = append(dirs, path.Join(dir, wineDir))
	}
	slices.Sort(dirs)
	dirs = slices.DeleteFunc(dirs, func(d string) bool { return !s.exists(d) })
	for _, name := range wineLibraries {
		if file, ok := s.module(dirs, []string{name}, ""); ok {
			s.files.Libraries = append(s.files.Libraries, Library{Path: file, Name: name, Capabilities: ngx, Bits: 64, Subdir: wineDir})
		}
	}
}

const wineDir = "nvidia/wine"
