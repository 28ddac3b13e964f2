package driver

import (
	"debug/elf"
	"runtime"
	"strings"
)

// kind is what is known about a library by its stem, the name before ".so".
type kind struct {
	capabilities []string
	// own: the version in its name is its own and not the driver's.
	own bool
	// develop: it gets a link without a version, which programs are linked with or
	// dlopen (what NVIDIA's installer creates).
	develop bool
	// subdir is where programs look for it below a library directory.
	subdir string
}

var (
	utility     = []string{"utility"}
	compute     = []string{"compute"}
	video       = []string{"video"}
	graphics    = []string{"graphics"}
	ngx         = []string{"ngx"}
	computeAndG = []string{"compute", "graphics"}
)

// kinds is toolkit.md 4.1 (libnvidia-container's lists) with the names that
// nvidia-container-toolkit adds (4.2) and those of drivers up to 590.
var kinds = map[string]kind{
	"libnvidia-ml":            {capabilities: utility, develop: true},
	"libnvidia-cfg":           {capabilities: utility, develop: true},
	"libnvidia-nscq":          {capabilities: utility},
	"libnvsdm":                {capabilities: utility},
	"libnvidia-sandboxutils":  {capabilities: utility},
	"libcuda":                 {capabilities: compute, develop: true},
	"libcudadebugger":         {capabilities: compute},
	"libnvidia-opencl":        {capabilities: compute},
	"libnvidia-gpucomp":       {capabilities: computeAndG},
	"libnvidia-allocator":     {capabilities: computeAndG, develop: true},
	"libnvidia-api":           {capabilities: computeAndG, own: true},
	"libnvidia-compiler":      {capabilities: compute},
	"libnvidia-compiler-next": {capabilities: compute},

	"libnvidia-ptxjitcompiler":    {capabilities: compute, develop: true},
	"libnvidia-fatbinaryloader":   {capabilities: compute},
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
	"libnvidia-ifr":               {capabilities: graphics, develop: true},
	"libnvidia-rtcore":            {capabilities: graphics},
	"libnvoptix":                  {capabilities: graphics},
	"libGLX_nvidia":               {capabilities: graphics},
	"libEGL_nvidia":               {capabilities: graphics},
	"libGLESv2_nvidia":            {capabilities: graphics},
	"libGLESv1_CM_nvidia":         {capabilities: graphics},
	"libnvidia-glvkspirv":         {capabilities: graphics},
	"libnvidia-cbl":               {capabilities: graphics},
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

	// Drivers without GLVND; those of GLVND carry another version and stay out.
	"libGL":        {capabilities: graphics},
	"libEGL":       {capabilities: graphics},
	"libGLESv1_CM": {capabilities: graphics},
	"libGLESv2":    {capabilities: graphics},

	// Widgets of nvidia-settings, which no container gets.
	"libnvidia-gtk2": {},
	"libnvidia-gtk3": {},
}

// split takes "libcuda.so.580.159.04" apart: "libcuda" and "580.159.04". A name
// that ends in ".so" has an empty version.
func split(name string) (stem, version string, ok bool) {
	stem, rest, ok := strings.Cut(name, ".so")
	if !ok || stem == "" || rest != "" && rest[0] != '.' {
		return "", "", false
	}
	return stem, strings.TrimPrefix(rest, "."), true
}

// candidate tells from a name alone whether the file behind it is worth a look.
func candidate(name, version string) bool {
	stem, have, ok := split(name)
	if !ok {
		return false
	}
	if k, known := kinds[stem]; known {
		return len(k.capabilities) > 0
	}
	return have == version && foreign(stem)
}

// NamesLibrary tells from a name alone whether it is a library of the driver, of
// whatever version: libcuda.so.570.86.10.
func NamesLibrary(name string) bool {
	stem, version, ok := split(name)
	_, known := kinds[stem]
	return ok && (known || foreign(stem)) && strings.Contains(version, ".") && strings.Trim(version, "0123456789.") == ""
}

// foreign tells whether an unknown stem can be a library of the driver.
func foreign(stem string) bool {
	return strings.HasPrefix(stem, "libnvidia-") || strings.HasPrefix(stem, "libcuda")
}

// architecture is what file systems and ELF files call a machine.
type architecture struct {
	triple, triple32     string
	machine64, machine32 elf.Machine
}

var architectures = map[string]architecture{
	"amd64": {"x86_64-linux-gnu", "i386-linux-gnu", elf.EM_X86_64, elf.EM_386},
	"arm64": {"aarch64-linux-gnu", "arm-linux-gnueabihf", elf.EM_AARCH64, elf.EM_ARM},
}

// arch is this machine's.
var arch = architectures[runtime.GOARCH]

// libraryDirs are the known places, in the order in which they are searched after
// ld.so.cache and the configuration.
func libraryDirs() []string {
	return []string{
		"/usr/lib/" + arch.triple,
		"/usr/lib/" + arch.triple + "/nvidia/current", // Debian's alternatives
		"/usr/lib64",
		"/usr/lib64/nvidia/current",
		"/lib64",
		"/lib/" + arch.triple,
		"/lib/" + arch.triple + "/nvidia/current",
		"/usr/lib",
		"/usr/lib32",
		"/usr/lib/" + arch.triple32,
		"/usr/lib/" + arch.triple32 + "/nvidia/current",
		"/usr/local/nvidia/lib64",
		"/usr/local/nvidia/lib",
		"/home/kubernetes/bin/nvidia/lib64", // Container-Optimized OS
		"/run/opengl-driver/lib",            // NixOS
		"/run/opengl-driver-32/lib",
	}
}

// librarySubdirs are searched below each of them.
var librarySubdirs = []string{"vdpau", "tls"}

// binaryKinds are the programs of toolkit.md 4.1 and 4.2. nvidia-modprobe
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
	{Name: "nvidia-xconfig", Capabilities: []string{"graphics", "display"}},
}

var binaryDirs = []string{"/usr/bin", "/usr/local/nvidia/bin", "/opt/bin", "/run/current-system/sw/bin", "/bin"}

// dataDirs are searched for the files of dataKinds. The first place wins: /etc is the
// administrator's.
var dataDirs = []string{"/etc", "/usr/local/share", "/usr/share", "/run/opengl-driver/etc", "/run/opengl-driver/share"}
