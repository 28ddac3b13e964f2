package driver

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/ldcache"
)

// server are the programs that a server's driver has, in the order of binaryKinds.
var server = []string{"nvidia-smi", "nvidia-debugdump", "nvidia-persistenced", "nvidia-cuda-mps-control", "nvidia-cuda-mps-server"}

// all installs every library of h200 into a directory, VDPAU's in vdpau below it.
func (r *fakeRoot) all(dir string) {
	for _, soname := range h200 {
		stem, _, _ := SplitName(soname)
		at := dir
		if stem == "libvdpau_nvidia" {
			at += "/vdpau"
		}
		r.lib(at+"/"+stem+".so."+version, soname)
	}
}

// all32 installs three 32-bit libraries.
func (r *fakeRoot) all32(dir string) {
	for _, soname := range []string{"libcuda.so.1", "libnvidia-ml.so.1", "libGLX_nvidia.so.0"} {
		stem, _, _ := SplitName(soname)
		r.Write(dir+"/"+stem+".so."+version, elf32(soname))
	}
}

func (r *fakeRoot) programs(dir string) {
	for _, name := range append([]string{"nvidia-modprobe", "nvidia-settings"}, server...) {
		r.Write(dir+"/"+name, "")
	}
}

// hostLayout is where a host has its driver. Paths are in the driver root; TRIPLE and TRIPLE32
// stand for the names of the machine.
type hostLayout struct {
	name string
	// libs, libs32 and programs are the directories of all libraries and programs.
	libs, libs32, programs string
	// links are made first: name, target.
	links [][2]string
	// cache are the directories in ld.so.cache, configured one that the configuration names.
	cache      []string
	configured string
	// data are the data files, all of which containers get.
	data []string
}

var usrMerge = [][2]string{{"lib", "usr/lib"}, {"lib64", "usr/lib64"}}

// hosts are the hosts of docs/install.md that the simulated driver has no layout of, each after its
// vendor's packages, and one that needs the configuration.
var hosts = []hostLayout{
	{
		name: "Ubuntu", libs: "usr/lib/TRIPLE", libs32: "usr/lib/TRIPLE32", programs: "usr/bin", links: usrMerge, cache: []string{"/lib/TRIPLE"},
		data: []string{"usr/lib/xorg/modules/drivers/nvidia_drv.so", "usr/share/nvidia/nvoptix.bin", "usr/share/vulkan/icd.d/nvidia_icd.json", "usr/share/vulkan/implicit_layer.d/nvidia_layers.json"},
	},
	{
		name: "RHEL and Fedora", libs: "usr/lib64", libs32: "usr/lib", programs: "usr/bin", links: usrMerge, cache: []string{"/lib64"},
		data: []string{"etc/OpenCL/vendors/nvidia.icd", "usr/share/egl/egl_external_platform.d/15_nvidia_gbm.json", "usr/share/vulkan/icd.d/nvidia_icd." + ldcache.ABI64.Arch + ".json"},
	},
	{
		name: "SUSE", libs: "usr/lib64", libs32: "usr/lib", programs: "usr/bin", cache: []string{"/usr/lib64"},
		data: []string{"usr/lib64/xorg/modules/drivers/nvidia_drv.so", "usr/share/vulkan/icd.d/nvidia_icd." + ldcache.ABI64.Arch + ".json"},
	},
	{
		name: "Arch Linux", libs: "usr/lib", libs32: "usr/lib32", programs: "usr/bin", cache: []string{"/usr/lib"},
		links: [][2]string{{"lib", "usr/lib"}, {"lib64", "usr/lib"}, {"usr/lib64", "lib"}},
		data:  []string{"usr/lib/xorg/modules/drivers/nvidia_drv.so", "usr/share/glvnd/egl_vendor.d/10_nvidia.json", "usr/share/vulkan/icd.d/nvidia_icd.json"},
	},
	{
		name: "GKE with Container-Optimized OS", libs: "home/kubernetes/bin/nvidia/lib64", programs: "home/kubernetes/bin/nvidia/bin", cache: []string{"/lib64"},
		data: []string{"home/kubernetes/bin/nvidia/vulkan/icd.d/nvidia_icd.json"},
	},
	{
		name: "Talos, driver in the glibc extension's prefix", libs: "usr/local/glibc/usr/lib64", programs: "usr/local/glibc/usr/bin",
		data: []string{"usr/local/glibc/etc/OpenCL/vendors/nvidia.icd", "usr/local/glibc/usr/share/glvnd/egl_vendor.d/10_nvidia.json"},
	},
	{
		name: "Talos, driver in /usr/local", libs: "usr/local/lib", programs: "usr/local/bin", links: [][2]string{{"usr/bin/nvidia-smi", "/usr/local/bin/nvidia-smi"}},
		data: []string{"etc/vulkan/icd.d/nvidia_icd.json", "usr/share/glvnd/egl_vendor.d/10_nvidia.json"},
	},
	{
		name: "a directory that only the configuration names", libs: "opt/vendor/libs", programs: "opt/bin", configured: "/opt/vendor/libs",
	},
	{
		name: "Flatcar's sysext, found by ld.so.cache", libs: "opt/nvidia/580/usr/lib64", programs: "opt/bin", cache: []string{"/opt/nvidia/current/usr/lib64"},
		links: [][2]string{{"opt/nvidia/current", "580"}},
	},
	{
		name: "Bottlerocket since 1.9", libs: "usr/lib/nvidia/tesla", programs: "usr/libexec/nvidia/tesla/bin",
	},
	{
		name: "Container-Optimized OS outside GKE", libs: "var/lib/nvidia/lib64", programs: "var/lib/nvidia/bin", cache: []string{"/lib64"},
	},
	{
		name: "Clear Linux", libs: "opt/nvidia/lib64", libs32: "opt/nvidia/lib32", programs: "opt/nvidia/bin",
	},
	{
		name: "Bottlerocket, programs in /usr/bin", libs: "bottlerocket/sys-root/usr/lib/nvidia/tesla", programs: "bottlerocket/sys-root/usr/bin", links: [][2]string{{"usr", "bottlerocket/sys-root/usr"}},
		data: []string{"bottlerocket/sys-root/usr/share/glvnd/egl_vendor.d/10_nvidia.json", "bottlerocket/sys-root/usr/share/nvidia/nvoptix.bin", "bottlerocket/sys-root/usr/share/vulkan/icd.d/nvidia_icd.json"},
	},
}

// expand replaces the names of the machine.
func expand(s string) string {
	return strings.NewReplacer("TRIPLE32", ldcache.ABI32.Triple, "TRIPLE", ldcache.ABI64.Triple).Replace(s)
}

func (h hostLayout) build(t *testing.T) *fakeRoot {
	r := newRoot(t)
	for _, l := range h.links {
		r.Link(l[0], l[1])
	}
	r.all(expand(h.libs))
	if h.libs32 != "" {
		r.all32(expand(h.libs32))
	}
	r.programs(h.programs)
	for _, name := range h.data {
		r.Write(name, icd("libGLX_nvidia.so.0", ""))
	}
	var cached []string
	for _, dir := range h.cache {
		cached = append(cached, expand(dir)+"/libcuda.so.1", expand(dir)+"/libnvidia-ml.so.1")
	}
	if cached != nil {
		r.cache(cached...)
	}
	if h.configured != "" {
		r.host.DriverLibraries = []string{h.configured}
	}
	return r
}

// What is found on each host, and where, for both machines.
func TestHosts(t *testing.T) {
	wide, narrow := ldcache.ABI64, ldcache.ABI32
	t.Cleanup(func() { ldcache.ABI64, ldcache.ABI32 = wide, narrow })
	for _, machine := range []string{"amd64", "arm64"} {
		for _, h := range hosts {
			t.Run(h.name+", "+machine, func(t *testing.T) {
				ldcache.ABI64, ldcache.ABI32 = ldcache.ABIs(machine)
				r := h.build(t)
				files := r.discover()
				r.Check(files.Check([]string{"compute", "utility"}))
				l := r.library(files, "libcuda.so."+version)
				if l.Path != filepath.Join(r.Dir, expand(h.libs), l.Name) || l.SOName != "libcuda.so.1" || l.Bits != 64 || files.Version != version {
					t.Errorf("libcuda is %+v", l)
				}
				n32, want32 := 0, 0
				for _, l := range files.Libraries {
					if l.Bits == 32 {
						n32++
					}
				}
				if h.libs32 != "" {
					want32 = 3
				}
				// One more: nvidia-drm_gbm.so.
				if n := len(files.Libraries) - n32; n != len(h200)+1 || n32 != want32 {
					t.Errorf("%d libraries and %d of 32 bits: %v", n, n32, libraryNames(files))
				}
				var programs, data []string
				for _, b := range files.Binaries {
					programs = append(programs, b.Path)
				}
				if len(programs) != len(server) || programs[0] != filepath.Join(r.Dir, h.programs, "nvidia-smi") {
					t.Errorf("programs %v", programs)
				}
				for _, d := range files.Data {
					if d.Path != "" { // else it is made
						data = append(data, strings.TrimPrefix(d.Path, r.Dir+"/"))
					}
				}
				slices.Sort(data)
				if !slices.Equal(data, h.data) {
					t.Errorf("data %v, want %v", data, h.data)
				}
				if err := os.Remove(filepath.Join(r.Dir, h.programs, "nvidia-smi")); err != nil {
					t.Fatal(err)
				}
				if without := r.discover(); !slices.Contains(without.Missing, "utility: nvidia-smi") && h.programs != "usr/local/bin" {
					t.Errorf("without nvidia-smi missing is %v", without.Missing)
				}
				if !slices.Equal(files.Missing, []string{"ngx: libnvidia-ngx.so." + version}) || len(files.Refused) != 0 {
					t.Errorf("missing %v, refused %v", files.Missing, files.Refused)
				}
			})
		}
	}
}
