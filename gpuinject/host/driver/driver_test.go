package driver

import (
	"errors"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/ldcache"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testtree"
)

// everything is a root with a library of each kind.
func everything(t testing.TB) *fakeRoot {
	r := newRoot(t)
	for stem, k := range kinds {
		name := stem + ".so." + version
		if k.own {
			name = stem + ".so.1.1.20"
		}
		r.lib("usr/lib64/"+name, stem+".so.1")
	}
	r.lib("usr/lib64/libnvidia-future.so."+version, "libnvidia-future.so.1")
	r.lib("usr/lib64/libnvidia-gtk3.so."+version, "libnvidia-gtk3.so."+version)
	r.lib("usr/lib64/libother.so."+version, "libother.so.1")
	r.lib("usr/lib64/libolder.so.570.86.15", "libolder.so.1")
	r.lib("opt/lib/libelsewhere.so."+version, "libelsewhere.so.1")
	r.lib("usr/lib64/libGL.so."+version, "libGL.so.1")
	r.lib("usr/lib64/libnvunknown.so.1.7", "libnvunknown.so.1")
	r.Write("usr/share/nvidia/files.d/sandboxutils-filelist.json", `[{"name": "libcuda.so.`+version+`", "type": "LIB", "category": ["cuda"]}, {"name": "libcuda.so.1", "type": "SYMLINK"},
		{"name": "libnvunknown.so.1.7", "type": "LIB"}, {"name": "libnvabsent.so.1.7", "type": "LIB"}, {"name": "libGL.so.1.7.0", "type": "LIB"}, {"name": "nvidia-smi", "type": "BINARY"}]`)
	r.lib("usr/lib64/libnvidia-container.so.1.18.0", "libnvidia-container.so.1")
	r.lib("usr/lib64/libcudart.so.13.0.48", "libcudart.so.13")
	r.lib("usr/lib64/libGL.so.1.7.0", "libGL.so.1")
	for _, stem := range []string{"libcuda", "libnvidia-ml", "libGLX_nvidia"} {
		r.Write("usr/lib/"+ldcache.ABI32.Triple+"/"+stem+".so."+version, elf32(stem+".so.1"))
	}
	r.Write("usr/lib64/xorg/modules/drivers/nvidia_drv.so", "")
	r.Write("usr/lib64/xorg/modules/extensions/libglxserver_nvidia.so."+version, "")
	r.Link("usr/lib64/xorg/modules/extensions/libglxserver_nvidia.so", "libglxserver_nvidia.so."+version)
	r.Write("etc/OpenCL/vendors/nvidia.icd", "libnvidia-opencl.so.1\n")
	r.Write("usr/share/nvidia/nvoptix.bin", "")
	for _, b := range binaryKinds {
		r.Write("usr/bin/"+b.Name, "")
	}
	return r
}

// drawn is what graphics adds besides libraries: the root has two of these, and the manifests are
// generated.
var drawn = []string{
	"/usr/share/glvnd/egl_vendor.d/10_nvidia.json", "/usr/share/egl/egl_external_platform.d/15_nvidia_gbm.json",
	"/usr/share/egl/egl_external_platform.d/10_nvidia_wayland.json", "/usr/share/egl/egl_external_platform.d/09_nvidia_wayland2.json",
	"/usr/share/egl/egl_external_platform.d/20_nvidia_xcb.json", "/usr/share/egl/egl_external_platform.d/20_nvidia_xlib.json",
	"/usr/share/nvidia/nvoptix.bin", "/etc/vulkan/icd.d/nvidia_icd.json", "drivers/nvidia_drv.so", "extensions/libglxserver_nvidia.so",
}

// T65: a library that a process without descriptors cannot find is not reported as missing.
func TestASearchWithoutDescriptorsHasNoResult(t *testing.T) {
	r := everything(t)
	want := r.discover()
	fits := false
	for spare := range uint64(8) {
		var got Files
		var err error
		testtree.LimitDescriptors(t, spare, func() { got, err = Discover(r.host, version) })
		fits = err == nil
		// Directories that were just made are read again next time: without a sum.
		got.Found, got.Sum = want.Found, want.Sum
		if fits && !reflect.DeepEqual(got, want) || !fits && !errors.Is(err, unix.EMFILE) {
			t.Errorf("with %d descriptors: %v, %d libraries", spare, err, len(got.Libraries))
		}
	}
	if !fits {
		t.Error("the search needs more than 8 descriptors")
	}
}

func TestFor(t *testing.T) {
	files := everything(t).discover()
	own := ".so.1.1.20"
	v := ".so." + version
	for _, tt := range []struct {
		name  string
		caps  []string
		has   []string
		lacks []string
		bin   int
		data  []string
		has32 int
	}{
		{name: "no capability is no file"},
		{name: "compat32 alone is no file", caps: []string{"compat32"}},
		{name: "utility is NVML and the tools", caps: []string{"utility"}, bin: 6,
			has:   []string{"libnvidia-ml" + v, "libnvidia-cfg" + v, "libnvidia-nscq" + v, "libnvidia-sandboxutils" + v},
			lacks: []string{"libcuda" + v, "libGLX_nvidia" + v}},
		{name: "compute is CUDA, OpenCL and the unknown libraries of the driver", caps: []string{"compute"}, bin: 2,
			has:   []string{"libcuda" + v, "libnvidia-future" + v, "libother" + v, "libnvcuextend" + v, "libnvidia-nvvm70" + own, "libcudadebugger" + v},
			lacks: []string{"libnvidia-ml" + v, "libnvidia-encode" + v, "libGLX_nvidia" + v, "libcudart.so.13.0.48"},
			data:  []string{"/etc/OpenCL/vendors/nvidia.icd"}},
		{name: "video brings CUDA with it, without its programs", caps: []string{"video"},
			has:   []string{"libnvcuvid" + v, "libnvidia-encode" + v, "libcuda" + v, "libvdpau_nvidia" + v},
			lacks: []string{"libGLX_nvidia" + v}, data: []string{"/etc/OpenCL/vendors/nvidia.icd"}},
		{name: "graphics is GL, Vulkan, their platforms and Xorg", caps: []string{"graphics"},
			has:   []string{"libGLX_nvidia" + v, "libnvidia-egl-wayland" + own, "libnvidia-egl-gbm" + own, "libnvidia-future" + v, "libnvidia-tls" + v, "nvidia-drm_gbm.so"},
			lacks: []string{"libcuda" + v, "libnvidia-ml" + v, "libGL.so.1.7.0"},
			data:  drawn, bin: 1},
		{name: "display brings graphics with it", caps: []string{"display"}, has: []string{"libGLX_nvidia" + v}, data: drawn, bin: 1},
		{name: "ngx is one library", caps: []string{"ngx"}, has: []string{"libnvidia-ngx" + v}, lacks: []string{"libcuda" + v}},
		{name: "compat32 doubles what the others chose", caps: []string{"utility", "compat32"}, bin: 6, has: []string{"libnvidia-ml" + v}, has32: 1},
		{name: "compat32 with all the others", caps: []string{"compute", "graphics", "utility", "compat32"}, bin: 9, has32: 3,
			data: slices.Concat(drawn[:8], []string{"/etc/OpenCL/vendors/nvidia.icd"}, drawn[8:])},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := files.For(tt.caps)
			var names, dests []string
			n32 := 0
			for _, l := range got.Libraries {
				names = append(names, l.Name)
				if l.Bits == 32 {
					n32++
				}
			}
			for _, d := range got.Data {
				dests = append(dests, d.Dest)
			}
			for _, n := range tt.has {
				if !slices.Contains(names, n) {
					t.Errorf("no %s in %v", n, names)
				}
			}
			for _, n := range append(tt.lacks, "libolder.so.570.86.15", "libelsewhere.so."+version, "libGL.so."+version, "libnvunknown.so.1.7", "libnvidia-gtk3.so."+version, "libnvidia-container.so.1.18.0") {
				if slices.Contains(names, n) {
					t.Errorf("%s is there", n)
				}
			}
			if len(tt.has) == 0 && tt.has32 == 0 && len(names) != 0 {
				t.Errorf("got %v", names)
			}
			if n32 != tt.has32 || len(got.Binaries) != tt.bin {
				t.Errorf("%d 32-bit libraries, %d programs", n32, len(got.Binaries))
			}
			if !slices.Equal(dests, tt.data) {
				t.Errorf("data %v, want %v", dests, tt.data)
			}
		})
	}
}

// What containers do not get is not dropped without a word.
func TestWhatIsLeftOut(t *testing.T) {
	r := everything(t)
	var got []string
	for _, l := range r.discover().LeftOut {
		got = append(got, strings.TrimPrefix(l.Path, r.Dir+"/usr/lib64/")+" "+l.Reason)
	}
	want := []string{"libGL.so." + version + " containers never get it", "libnvidia-gtk3.so." + version + " containers never get it",
		"libnvunknown.so.1.7 it is in the driver's list of files for containers, and unknown here"}
	if !slices.Equal(got, want) {
		t.Errorf("left out %q, want %q", got, want)
	}
	r.Write("usr/share/nvidia/files.d/sandboxutils-filelist.json", `{"another": "form"}`)
	if n := len(r.discover().LeftOut); n != 2 {
		t.Errorf("%d left out with a list in another form", n)
	}
}

// A store names files by their content, and a link can lead either way: the name that was found
// decides, for libraries, programs and manifests.
func TestTheNameThatWasFoundDecides(t *testing.T) {
	cuda, ml, smi, icds := "usr/lib64/libcuda.so."+version, "usr/lib64/libnvidia-ml.so."+version, "usr/bin/nvidia-smi", "etc/vulkan/icd.d/nvidia_icd.json"
	for _, tt := range []struct {
		name string
		make func(r *fakeRoot)
	}{
		{"a store", func(r *fakeRoot) {
			r.Write("store/2f8a", elf64("libcuda.so.1"))
			r.Write("store/77c1", elf64("libnvidia-ml.so.1"))
			r.Write("store/bin", "")
			r.Write("store/icd", icd("libGLX_nvidia.so.0", ""))
			r.Link(cuda, "/store/2f8a")
			r.Link("usr/lib64/libcuda.so.1", "libcuda.so."+version)
			r.Link(ml, "../../store/77c1")
			r.Link(smi, "/store/bin")
			r.Link(icds, "/store/icd")
		}},
		{"a store, every name a link of its own, and ld.so.cache", func(r *fakeRoot) {
			r.Write("store/2f8a", elf64("libcuda.so.1"))
			for _, name := range []string{"libcuda.so", "libcuda.so.1", "libcuda.so." + version} {
				r.Link("usr/lib64/"+name, "/store/2f8a")
			}
			r.Write("store/libnvidia-ml.so", elf64("libnvidia-ml.so.1"))
			r.Link(ml, "/store/libnvidia-ml.so")
			r.Write("store/smi.real", "")
			r.Link(smi, "/store/smi.real")
			r.Write("store/icd.json", icd("libGLX_nvidia.so.0", ""))
			r.Link(icds, "/store/icd.json")
			r.cache("/usr/lib64/libcuda.so.1")
		}},
		{"links from the version to the SONAME", func(r *fakeRoot) {
			r.Write("usr/lib64/libcuda.so.1", elf64("libcuda.so.1"))
			r.Link(cuda, "libcuda.so.1")
			r.Write("usr/lib64/libnvidia-ml.so", elf64("libnvidia-ml.so.1"))
			r.Link("usr/lib64/libnvidia-ml.so.1", "libnvidia-ml.so")
			r.Link(ml, "libnvidia-ml.so.1")
			r.Write("usr/bin/nvidia-smi-"+version, "")
			r.Link(smi, "nvidia-smi-"+version)
			r.Write("etc/vulkan/icd.d/nvidia.json", icd("libGLX_nvidia.so.0", ""))
			r.Link(icds, "nvidia.json")
		}},
		{"a file with another library's name", func(r *fakeRoot) {
			r.Write("usr/lib64/libcuda-impl.so."+version+".bin", elf64("libcuda.so.1"))
			r.Link(cuda, "libcuda-impl.so."+version+".bin")
			r.Write("usr/lib64/libimpl.so.1.2.3", elf64("libnvidia-ml.so.1"))
			r.Link(ml, "libimpl.so.1.2.3")
			r.Write("usr/bin/busy", "")
			r.Link(smi, "busy")
			r.Write("etc/vulkan/icd.d/intel_icd.json", icd("libGLX_nvidia.so.0", ""))
			r.Link(icds, "intel_icd.json")
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newRoot(t)
			tt.make(r)
			files := r.discover()
			r.Check(files.Check([]string{"compute", "utility"}))
			if got := libraryNames(files); !slices.Equal(got, []string{"libcuda.so." + version, "libnvidia-ml.so." + version}) {
				t.Errorf("libraries %v", got)
			}
			if l := r.library(files, "libcuda.so."+version); !slices.Equal(l.Links, []string{"libcuda.so.1", "libcuda.so"}) {
				t.Errorf("links %v", l.Links)
			}
			if len(files.Binaries) != 1 || files.Binaries[0].Name != "nvidia-smi" {
				t.Errorf("programs %+v", files.Binaries)
			}
			if f, ok := given(files, vulkanICD); !ok || f.Data != nil {
				t.Errorf("the manifest is %+v", f)
			}
			for _, l := range files.Libraries {
				if !files.IsMounted(l.Path, "/usr/lib64/"+l.SOName) || files.IsMounted(l.Path, "/opt/"+l.SOName) {
					t.Errorf("a CDI specification's mount of %s is not recognized, or a user's is", l.Name)
				}
			}
			if b := files.Binaries[0]; !files.IsMounted(b.Path, "/usr/bin/nvidia-smi") || files.IsMounted(b.Path, "/opt/nvidia-smi") {
				t.Errorf("a CDI specification's mount of %s is not recognized, or a user's is", b.Path)
			}
		})
	}
	t.Run("a target that says another version", func(t *testing.T) {
		r := newRoot(t)
		r.lib("usr/lib64/libcuda.so.570.86.15", "libcuda.so.1")
		r.Link(cuda, "libcuda.so.570.86.15")
		testtree.Says(t, r.discover().Check([]string{"compute"}), "libcuda.so.570.86.15", "reboot")
	})
	t.Run("a refused file in a store", func(t *testing.T) {
		r := newRoot(t)
		r.Check(os.Chmod(r.Write("store/2f8a", elf64("libcuda.so.1")), 0o757))
		r.Link(cuda, "/store/2f8a")
		testtree.Says(t, r.discover().Check([]string{"compute"}), "libcuda.so."+version, "refused", "writable by users")
	})
}

func TestLibraryPlaces(t *testing.T) {
	t.Run("the version of the kernel module is taken although the cache names another", func(t *testing.T) {
		r := newRoot(t)
		r.core("usr/lib64", "570.86.15")
		r.core("usr/lib64", version)
		r.cache("/usr/lib64/libcuda.so.1")
		if got := libraryNames(r.discover()); !slices.Equal(got, []string{"libcuda.so." + version, "libnvidia-ml.so." + version}) {
			t.Errorf("got %v", got)
		}
	})
	t.Run("a damaged ld.so.cache does not hide the directories", func(t *testing.T) {
		r := newRoot(t)
		r.core("usr/lib64", version)
		r.Write("etc/ld.so.cache", "glibc-ld.so.cache1.1garbage")
		r.Check(r.discover().Check([]string{"compute", "utility"}))
	})
	t.Run("the driver root / is this host", func(t *testing.T) {
		r := newRoot(t)
		r.core("lib64", version)
		r.host.DriverRoot, r.host.DriverLibraries = "/", []string{r.Dir + "/lib64"}
		if l := r.library(r.discover(), "libcuda.so."+version); l.Path != r.Dir+"/lib64/"+l.Name {
			t.Errorf("%+v", l)
		}
	})
	t.Run("of a library with versions of its own the one that its SONAME names is taken", func(t *testing.T) {
		r := newRoot(t)
		for _, v := range []string{"1.1.1", "1.1.3", "1.1.2"} {
			r.Write("usr/lib64/libnvidia-egl-gbm.so."+v, elf64("libnvidia-egl-gbm.so.1"))
		}
		r.Link("usr/lib64/libnvidia-egl-gbm.so.1", "libnvidia-egl-gbm.so.1.1.3")
		if got := libraryNames(r.discover()); !slices.Equal(got, []string{"libnvidia-egl-gbm.so.1.1.3"}) {
			t.Errorf("got %v", got)
		}
	})
	t.Run("names that are hard links of one file are found", func(t *testing.T) {
		r := newRoot(t)
		name := r.Write("usr/lib64/libcuda.so."+version, elf64("libcuda.so.1"))
		r.Check(os.Link(name, r.Dir+"/usr/lib64/libcuda.so.1"))
		if got := libraryNames(r.discover()); !slices.Equal(got, []string{"libcuda.so." + version}) {
			t.Errorf("got %v", got)
		}
	})
}

func TestCheck(t *testing.T) {
	t.Run("a host without libraries says where it looked and what to do", func(t *testing.T) {
		r := newRoot(t)
		r.Write("usr/lib64/libc.so.6", "")
		files := r.discover()
		testtree.Says(t, files.Check([]string{"compute"}), version+" is loaded", "libcuda.so."+version, r.Dir+"/usr/lib64", "host.driver-root")
		testtree.Says(t, files.Check([]string{"utility"}), "libnvidia-ml.so."+version)
		testtree.Says(t, files.Check([]string{"video"}), "libcuda.so."+version)
		if err := files.Check([]string{"graphics", "display", "ngx", "compat32"}); err != nil {
			t.Errorf("servers have no graphics: %v", err)
		}
	})
	t.Run("an empty driver root says so", func(t *testing.T) {
		testtree.Says(t, newRoot(t).discover().Check([]string{"compute"}), "none of the known directories")
	})
	t.Run("another version says both versions and what to do", func(t *testing.T) {
		r := newRoot(t)
		r.core("usr/lib64", "570.86.15")
		files := r.discover()
		if len(files.Libraries) != 0 {
			t.Errorf("got %v", libraryNames(files))
		}
		testtree.Says(t, files.Check([]string{"compute"}), "libcuda.so.570.86.15", version, "reboot", "reload the nvidia module", "reinstall")
		testtree.Says(t, files.Check([]string{"utility"}), "libnvidia-ml.so.570.86.15", version)
	})
	t.Run("only 32-bit libraries are not enough", func(t *testing.T) {
		r := newRoot(t)
		r.Write("usr/lib32/libcuda.so."+version, elf32("libcuda.so.1"))
		testtree.Says(t, r.discover().Check([]string{"compute"}), "not found")
	})
}
