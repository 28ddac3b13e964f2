package sim

import (
	"cmp"
	"fmt"
	"slices"
)

// library is one shared object of the driver.
type library struct {
	name   string // without .so
	soname string // what follows the name; "" for .so.<version>
	source string // C file; "" for library.c
	// version of the file where it is not the driver's.
	version string
	dev     bool     // there is a .so link
	vdpau   bool     // goes to the VDPAU sub-directory
	compat  bool     // there is a 32-bit one
	needs   []string // names of libraries of the driver in DT_NEEDED
	xorg    string   // "driver" or "extension" of the X server
}

// libraries are those of an H200 host with the 580 driver, and the ones that
// come with a desktop.
var libraries = []library{
	{name: "libcuda", soname: ".so.1", source: "cuda.c", dev: true, compat: true},
	{name: "libnvidia-ml", soname: ".so.1", source: "nvml.c", dev: true, compat: true},
	{name: "libcudadebugger", soname: ".so.1"},
	{name: "libnvcuvid", soname: ".so.1", dev: true, compat: true, needs: []string{"libcuda"}},
	{name: "libnvidia-allocator", soname: ".so.1", source: "icd.c", dev: true, compat: true},
	{name: "libnvidia-cfg", soname: ".so.1", dev: true},
	{name: "libnvidia-encode", soname: ".so.1", dev: true, compat: true},
	{name: "libnvidia-fbc", soname: ".so.1", dev: true, compat: true},
	{name: "libnvidia-nvvm", soname: ".so.4", dev: true, compat: true},
	{name: "libnvidia-opencl", soname: ".so.1", source: "icd.c", compat: true},
	{name: "libnvidia-opticalflow", soname: ".so.1", dev: true, compat: true},
	{name: "libnvidia-ptxjitcompiler", soname: ".so.1", dev: true, compat: true},
	{name: "libnvidia-ngx", soname: ".so.1"},
	{name: "libnvidia-pkcs11-openssl3"},
	{name: "libnvidia-eglcore", compat: true},
	{name: "libnvidia-glcore", compat: true},
	{name: "libnvidia-glsi", compat: true},
	{name: "libnvidia-tls", compat: true},
	{name: "libnvidia-glvkspirv", compat: true},
	{name: "libnvidia-gpucomp", compat: true},
	{name: "libnvidia-rtcore"},
	{name: "libnvoptix", soname: ".so.1"},
	{name: "libGLX_nvidia", soname: ".so.0", source: "icd.c", compat: true, needs: []string{"libnvidia-tls", "libnvidia-glcore"}},
	{name: "libEGL_nvidia", soname: ".so.0", source: "icd.c", compat: true, needs: []string{"libnvidia-glsi"}},
	{name: "libGLESv2_nvidia", soname: ".so.2", compat: true, needs: []string{"libnvidia-glsi"}},
	{name: "libGLESv1_CM_nvidia", soname: ".so.1", compat: true, needs: []string{"libnvidia-glsi"}},
	{name: "libvdpau_nvidia", soname: ".so.1", source: "icd.c", vdpau: true, compat: true},
	{name: "libnvidia-egl-wayland", soname: ".so.1", version: "1.1.19"},
	{name: "libnvidia-egl-gbm", soname: ".so.1", version: "1.1.2"},
	{name: "libglxserver_nvidia", xorg: "extension"},
	{name: "nvidia_drv", soname: ".so", xorg: "driver"},
}

func libraryNamed(name string) library {
	return libraries[slices.IndexFunc(libraries, func(l library) bool { return l.name == name })]
}

// file is the base name of the library's file.
func (l library) file(driver string) string {
	if l.xorg == "driver" { // the X server wants exactly this name
		return l.name + ".so"
	}
	return l.name + ".so." + cmp.Or(l.version, driver)
}

// sonameOf is the library's DT_SONAME.
func (l library) sonameOf(driver string) string {
	if l.soname == "" {
		return l.file(driver)
	}
	return l.name + l.soname
}

// program is one executable of the driver.
type program struct {
	name string
	// alternative: reached through /etc/alternatives in the layout that has them.
	alternative bool
	setuid      bool
}

var programs = []program{
	{name: "nvidia-smi", alternative: true},
	{name: "nvidia-debugdump", alternative: true},
	{name: "nvidia-persistenced"},
	{name: "nvidia-cuda-mps-control"},
	{name: "nvidia-cuda-mps-server"},
	{name: "nvidia-modprobe", setuid: true},
}

// cudaVersion is the answer to cuDriverGetVersion: 13000 for 13.0.
func (d *Driver) cudaVersion() int {
	if d.CUDA != "" {
		var major, minor int
		fmt.Sscanf(d.CUDA, "%d.%d", &major, &minor)
		return major*1000 + minor*10
	}
	return cmp.Or(cudaOfBranch[d.branch()], 13000)
}

// branch is the first number of the version.
func (d *Driver) branch() (n int) {
	fmt.Sscanf(d.Version, "%d", &n)
	return n
}

// cudaOfBranch are the CUDA versions of driver branches other than 580.
var cudaOfBranch = map[int]int{
	535: 12020, 550: 12040, 560: 12060, 565: 12070, 570: 12080, 575: 12090, 590: 13010, 595: 13020, 610: 13030, 615: 13040,
}

// dataFile is one file that is not code. The name begins with "share/" or
// "firmware/" for the layout's directory, "etc/", or is a full path.
type dataFile struct {
	name, content string
	desktop       bool // only where there is a display
}

// dataFiles are those of the driver.
func dataFiles(version, vulkan string) []dataFile {
	icd := func(lib string) string {
		return "{\n    \"file_format_version\" : \"1.0.0\",\n    \"ICD\" : {\n        \"library_path\" : \"" + lib + "\"\n    }\n}\n"
	}
	return []dataFile{
		{name: "share/glvnd/egl_vendor.d/10_nvidia.json", content: icd("libEGL_nvidia.so.0")},
		{name: vulkan, content: "{\n    \"file_format_version\" : \"1.0.1\",\n    \"ICD\": {\n        \"library_path\": \"libGLX_nvidia.so.0\",\n        \"api_version\" : \"1.4.312\"\n    }\n}\n"},
		{name: "share/vulkan/implicit_layer.d/nvidia_layers.json", content: "{\n    \"file_format_version\" : \"1.0.0\",\n    \"layers\": [{\n        \"name\": \"VK_LAYER_NV_optimus\",\n        \"type\": \"INSTANCE\",\n        \"library_path\": \"libGLX_nvidia.so.0\",\n        \"api_version\" : \"1.4.312\",\n        \"implementation_version\" : \"1\",\n        \"description\" : \"NVIDIA Optimus layer\"\n    }]\n}\n"},
		{name: "share/egl/egl_external_platform.d/10_nvidia_wayland.json", content: icd("libnvidia-egl-wayland.so.1")},
		{name: "share/egl/egl_external_platform.d/15_nvidia_gbm.json", content: icd("libnvidia-egl-gbm.so.1")},
		{name: "share/nvidia/nvoptix.bin", content: "simulated nvoptix.bin " + version + "\n"},
		{name: "share/nvidia/nvidia-application-profiles-" + version + "-rc", content: "{}\n", desktop: true},
		{name: "share/X11/xorg.conf.d/nvidia-drm-outputclass.conf", content: "Section \"OutputClass\"\n    Identifier \"nvidia\"\n    MatchDriver \"nvidia-drm\"\n    Driver \"nvidia\"\nEndSection\n", desktop: true},
		{name: "etc/OpenCL/vendors/nvidia.icd", content: "libnvidia-opencl.so.1\n"},
		{name: "firmware/nvidia/" + version + "/gsp_ga10x.bin", content: "simulated firmware " + version + "\n"},
		{name: "firmware/nvidia/" + version + "/gsp_tu10x.bin", content: "simulated firmware " + version + "\n"},
	}
}
