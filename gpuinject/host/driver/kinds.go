package driver

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/ldcache"
)

// kind is a kind of library, known by its stem: the name before ".so".
type kind struct {
	capabilities []string
	// own: the version in its name is its own and not the driver's.
	own bool
	// develop: it gets a link without a version, as from NVIDIA's installer.
	develop bool
	// subdir is where programs look for it below a library directory.
	subdir string
}

var (
	utility     = []string{config.Utility}
	compute     = []string{config.Compute}
	video       = []string{config.Video}
	graphics    = []string{config.Graphics}
	ngx         = []string{config.NGX}
	computeAndG = []string{config.Compute, config.Graphics}

	// EveryCapability is for files without which no part of a driver works.
	EveryCapability = []string{config.Compute, config.Display, config.Graphics, config.NGX, config.Utility, config.Video}
)

// kinds has the names in libnvidia-container's lists, those that nvidia-container-toolkit adds, and
// those of drivers up to 610, by stem. For other names see kindOf and Search.beside.
var kinds = map[string]kind{
	"libnvidia-ml":           {capabilities: utility, develop: true},
	"libnvidia-cfg":          {capabilities: utility, develop: true},
	"libnvidia-nscq":         {capabilities: utility},
	"libnvsdm":               {capabilities: utility},
	"libnvidia-sandboxutils": {capabilities: utility},
	"libcuda":                {capabilities: compute, develop: true},
	"libcudadebugger":        {capabilities: compute},
	"libnvcuextend":          {capabilities: compute},
	"libnvidia-opencl":       {capabilities: compute},
	"libnvidia-allocator":    {capabilities: computeAndG, develop: true},
	"libnvidia-api":          {capabilities: computeAndG, own: true},
	"libnvidia-compiler":     {capabilities: compute},

	"libnvidia-ptxjitcompiler":    {capabilities: compute, develop: true},
	"libnvidia-pkcs11":            {capabilities: compute},
	"libnvidia-pkcs11-openssl3":   {capabilities: compute},
	"libnvidia-nvvm":              {capabilities: compute, develop: true},
	"libnvidia-nvvm70":            {capabilities: compute, own: true},
	"libnvidia-tileiras":          {capabilities: compute},
	"libvdpau_nvidia":             {capabilities: video, develop: true, subdir: "vdpau"},
	"libnvidia-encode":            {capabilities: video, develop: true},
	"libnvidia-opticalflow":       {capabilities: video, develop: true},
	"libnvcuvid":                  {capabilities: video, develop: true},
	"libnvidia-ngx":               {capabilities: ngx},
	"libnvidia-eglcore":           {capabilities: graphics},
	"libnvidia-glcore":            {capabilities: graphics},
	"libnvidia-tls":               {capabilities: graphics},
	"libnvidia-glsi":              {capabilities: graphics},
	"libnvidia-fbc":               {capabilities: graphics, develop: true},
	"libnvidia-rtcore":            {capabilities: graphics},
	"libnvoptix":                  {capabilities: graphics},
	"libGLX_nvidia":               {capabilities: graphics},
	"libEGL_nvidia":               {capabilities: graphics},
	"libGLESv2_nvidia":            {capabilities: graphics},
	"libGLESv1_CM_nvidia":         {capabilities: graphics},
	"libnvidia-glvkspirv":         {capabilities: graphics},
	"libnvidia-present":           {capabilities: graphics},
	"libnvidia-vksc-core":         {capabilities: graphics},
	"libnvidia-vulkan-producer":   {capabilities: graphics, develop: true},
	"libnvidia-wayland-client":    {capabilities: graphics},
	"libnvidia-egl-wayland":       {capabilities: graphics, own: true},
	"libnvidia-egl-wayland2":      {capabilities: graphics, own: true},
	"libnvidia-egl-gbm":           {capabilities: graphics, own: true},
	"libnvidia-egl-xcb":           {capabilities: graphics, own: true},
	"libnvidia-egl-xlib":          {capabilities: graphics, own: true},
	"libnvidia-egl-nvidia-client": {capabilities: graphics},
}

// SplitName splits "libcuda.so.580.159.04" into "libcuda" and "580.159.04".
func SplitName(name string) (stem, version string, ok bool) {
	stem, rest, ok := strings.Cut(name, ".so")
	if !ok || stem == "" || rest != "" && rest[0] != '.' {
		return "", "", false
	}
	return stem, strings.TrimPrefix(rest, "."), true
}

// neverGiven are libraries of the driver's version that containers never get, besides the widgets
// of nvidia-settings (libnvidia-gtk*): its X extension, the X server's module, which has another
// place, and the dispatching libraries of drivers without libglvnd, which would take the place of
// the image's.
var neverGiven = []string{
	"libXNVCtrl", "libXvMCNVIDIA", "libglxserver_nvidia",
	"libGL", "libEGL", "libGLX", "libGLESv1_CM", "libGLESv2", "libGLdispatch", "libOpenGL", "libOpenCL",
}

func isNeverGiven(stem string) bool {
	return strings.HasPrefix(stem, "libnvidia-gtk") || slices.Contains(neverGiven, stem)
}

// kindOf returns the kind of a stem. An unknown stem may be new: a superfluous library is better
// than a missing one.
func kindOf(stem string) (k kind, ok bool) {
	k, ok = kinds[stem]
	if !ok && (strings.HasPrefix(stem, "libnvidia-") || strings.HasPrefix(stem, "libcuda")) && !isNeverGiven(stem) {
		return kind{capabilities: computeAndG}, true
	}
	return k, ok
}

// Capabilities returns those of the library with this stem.
func Capabilities(stem string) []string {
	k, _ := kindOf(stem)
	return k.capabilities
}

// namesLibrary reports whether a file of this name is a library of the driver in some version:
// libcuda.so.570.86.10.
func namesLibrary(name string) bool {
	stem, version, ok := SplitName(name)
	_, known := kindOf(stem)
	return ok && known && strings.Contains(version, ".") && isNumeric(version)
}

func isNumeric(version string) bool { return strings.Trim(version, "0123456789.") == "" }

// binaryKinds are the programs that containers get, as in NVIDIA's toolkit. nvidia-modprobe
// (set-user-id) and nvidia-settings are never given.
var binaryKinds = []Binary{
	{Name: "nvidia-smi", Capabilities: utility},
	{Name: "nvidia-debugdump", Capabilities: utility},
	{Name: "nvidia-persistenced", Capabilities: utility},
	{Name: "nv-fabricmanager", Capabilities: utility},
	{Name: "nvidia-imex", Capabilities: utility},
	{Name: "nvidia-imex-ctl", Capabilities: utility},
	{Name: "nvidia-cuda-mps-control", Capabilities: compute},
	{Name: "nvidia-cuda-mps-server", Capabilities: compute},
	{Name: "nvidia-xconfig", Capabilities: []string{config.Graphics, config.Display}},
}

// expectedPrograms are those that every driver comes with. Their absence is reported as that of a
// library.
var expectedPrograms = []string{"nvidia-smi", "nvidia-debugdump", "nvidia-cuda-mps-control", "nvidia-cuda-mps-server"}

type dataKind struct {
	// dest is the directory of the image that dir goes below; dir is below one of dataDirs on the
	// host.
	dest, dir string
	// names are its names in distributions; the container sees the first.
	names []string
	// ordered: the number before the name decides when the file is read. A host's file may have
	// another one, and keeps it.
	ordered      bool
	capabilities []string
	// library is the one that the file announces to a loader. If the host has the library but not
	// the file, content generates what NVIDIA's installer would write.
	library string
	content func(soname, version string) string
	// also are other directories where loaders look and images may have a copy.
	also []string
	// needs are libraries, absolute or below the image's library directory. A generated file is of
	// no use to an image that has none of them.
	needs []string
}

// dataKinds go to /etc or /usr/share in the container, whatever the host has: the directories that
// libglvnd, the Vulkan loader, OpenCL's loader, the X server and OptiX look in as distributions
// build them. Vulkan's files go to /etc, where images that bring copies of their own have them most
// often: from two manifests the loader makes two drivers and lists each GPU twice, by design
// (Khronos Vulkan-Loader #493).
var dataKinds = []dataKind{
	{dest: "/usr/share", dir: "glvnd/egl_vendor.d", names: []string{"10_nvidia.json"}, ordered: true, capabilities: graphics,
		library: "libEGL_nvidia", content: platformJSON, also: []string{"/etc/glvnd/egl_vendor.d"}},
	eglPlatform("15_nvidia_gbm.json", "libnvidia-egl-gbm"),
	eglPlatform("10_nvidia_wayland.json", "libnvidia-egl-wayland"),
	eglPlatform("09_nvidia_wayland2.json", "libnvidia-egl-wayland2"),
	eglPlatform("20_nvidia_xcb.json", "libnvidia-egl-xcb"),
	eglPlatform("20_nvidia_xlib.json", "libnvidia-egl-xlib"),
	{dest: "/usr/share", dir: "nvidia", names: []string{"nvoptix.bin"}, capabilities: graphics},
	{dest: "/usr/share", dir: "X11/xorg.conf.d", names: []string{"10-nvidia.conf"}, ordered: true, capabilities: graphics},
	{dest: "/usr/share", dir: "X11/xorg.conf.d", names: []string{"nvidia-drm-outputclass.conf"}, ordered: true, capabilities: graphics},
	{dest: "/etc", dir: "vulkan/icd.d", names: []string{"nvidia_icd.json", "nvidia_icd." + ldcache.ABI64.Arch + ".json"}, capabilities: graphics,
		library: "libGLX_nvidia", content: vulkanJSON, also: []string{"/usr/share/vulkan/icd.d", "/usr/local/share/vulkan/icd.d"}},
	{dest: "/etc", dir: "vulkan/implicit_layer.d", names: []string{"nvidia_layers.json"}, capabilities: graphics,
		also: []string{"/usr/share/vulkan/implicit_layer.d", "/usr/local/share/vulkan/implicit_layer.d"}},
	{dest: "/etc", dir: "vulkansc/icd.d", names: []string{"nvidia_icd_vksc.json", "nvidia_icd." + ldcache.ABI64.Arch + ".json"}, capabilities: graphics},
	{dest: "/etc", dir: "OpenCL/vendors", names: []string{"nvidia.icd"}, capabilities: compute,
		library: "libnvidia-opencl", content: func(soname, _ string) string { return soname + "\n" },
		// The loaders of distributions, and the one in the CUDA images.
		needs: []string{"libOpenCL.so.1", "/usr/local/cuda/lib64/libOpenCL.so.1"}},
}

func eglPlatform(name, library string) dataKind {
	const dir = "egl/egl_external_platform.d"
	return dataKind{dest: "/usr/share", dir: dir, names: []string{name}, ordered: true, capabilities: graphics,
		library: library, content: platformJSON, also: []string{"/etc/" + dir}}
}

// platformJSON returns a vendor file of libglvnd or a file of an external EGL platform.
func platformJSON(soname, _ string) string {
	return fmt.Sprintf("{\n    \"file_format_version\" : \"1.0.0\",\n    \"ICD\" : {\n        \"library_path\" : %q\n    }\n}\n", soname)
}

// vulkanJSON returns the manifest of the Vulkan driver. The loader uses major and minor of
// api_version: the highest version that an application may request. Every release from these
// branches on supports the version written here.
func vulkanJSON(soname, version string) string {
	api := "1.1.99"
	branch, _, _ := strings.Cut(version, ".")
	switch n, _ := strconv.Atoi(branch); {
	case n >= 570:
		api = "1.4.303"
	case n >= 510:
		api = "1.3.194"
	case n >= 450:
		api = "1.2.133"
	}
	return fmt.Sprintf("{\n    \"file_format_version\" : \"1.0.1\",\n    \"ICD\": {\n        \"library_path\": %q,\n        \"api_version\" : %q\n    }\n}\n", soname, api)
}
