package driver

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/ldcache"
)

// drawing makes a root with the libraries that manifests name.
func drawing(t testing.TB, dir string) *fakeRoot {
	r := newRoot(t)
	for _, soname := range []string{"libGLX_nvidia.so.0", "libEGL_nvidia.so.0", "libnvidia-opencl.so.1", "libnvidia-vksc-core.so.1"} {
		stem, _, _ := SplitName(soname)
		r.lib(dir+"/"+stem+".so."+version, soname)
	}
	return r
}

// given is the data file that goes to dest.
func given(files Files, dest string) (File, bool) {
	i := slices.IndexFunc(files.Data, func(f File) bool { return f.Dest == dest })
	if i < 0 {
		return File{}, false
	}
	return files.Data[i], true
}

func icd(name, more string) string {
	return `{"file_format_version" : "1.0.0", "ICD": {"library_path" : "` + name + `"` + more + `}}`
}

const (
	vulkanICD = "/etc/vulkan/icd.d/nvidia_icd.json"
	layers    = "/etc/vulkan/implicit_layer.d/nvidia_layers.json"
	openCL    = "/etc/OpenCL/vendors/nvidia.icd"
	eglVendor = "/usr/share/glvnd/egl_vendor.d/10_nvidia.json"
)

func TestManifests(t *testing.T) {
	good, made := icd("libGLX_nvidia.so.0", ""), `"library_path": "libGLX_nvidia.so.0",`
	machineICD := "usr/share/vulkan/icd.d/nvidia_icd." + ldcache.ABI64.Arch + ".json"
	type texts map[string]string
	for _, tt := range []struct {
		name  string
		files texts
		dest  string
		host  string // the host's file that is given, "" for one that is made
		made  string // what the made one says; "-" if there is none
		gone  string // the reason of a refusal
	}{
		{"a SONAME is for every loader", texts{"usr/share/vulkan/icd.d/nvidia_icd.json": good}, vulkanICD, "usr/share/vulkan/icd.d/nvidia_icd.json", "", ""},
		{"an absolute path is not the container's (NixOS)", texts{"run/opengl-driver/" + machineICD[4:]: icd("/nix/store/abc-nvidia-x11/lib/libGLX_nvidia.so.0", "")}, vulkanICD, "", made, ""},
		{"nor is a relative one", texts{"etc/vulkan/icd.d/nvidia_icd.json": icd("../../../usr/lib/libGLX_nvidia.so.0", "")}, vulkanICD, "", made, ""},
		{"one for one of two ABIs (Fedora)", texts{machineICD: icd("libGLX_nvidia.so.0", `, "library_arch" : "64"`)}, vulkanICD, "", made, ""},
		{"the administrator's comes before the package's", texts{"usr/share/vulkan/icd.d/nvidia_icd.json": good, "etc/vulkan/icd.d/nvidia_icd." + ldcache.ABI64.Arch + ".json": good},
			vulkanICD, "etc/vulkan/icd.d/nvidia_icd." + ldcache.ABI64.Arch + ".json", "", ""},
		{"another machine's is not taken", texts{"usr/share/vulkan/icd.d/nvidia_icd.i686.json": good}, vulkanICD, "", made, ""},
		{"one without end is not taken", texts{"etc/vulkan/icd.d/nvidia_icd.json": good + strings.Repeat(" ", maxManifest)}, vulkanICD, "", made, "is larger than"},
		{"where there is none, one is made", nil, vulkanICD, "", `"api_version" : "1.4.303"`, ""},
		{"for EGL too", nil, eglVendor, "", `"library_path" : "libEGL_nvidia.so.0"`, ""},
		{"for OpenCL too", nil, openCL, "", "libnvidia-opencl.so.1\n", ""},
		{"OpenCL's file is a path on some hosts (NixOS)", texts{"run/opengl-driver/etc/OpenCL/vendors/nvidia.icd": "/nix/store/abc/lib/libnvidia-opencl.so.1\n"}, openCL, "", "libnvidia-opencl.so.1\n", ""},
		{"layers are given", texts{"usr/share/vulkan/implicit_layer.d/nvidia_layers.json": `{"layers": [{"library_path": "libGLX_nvidia.so.0"}]}`},
			layers, "usr/share/vulkan/implicit_layer.d/nvidia_layers.json", "", ""},
		{"layers by path are not, since none can be made", texts{"usr/share/vulkan/implicit_layer.d/nvidia_layers.json": `{"layers": [{"library_path": "/usr/lib64/libGLX_nvidia.so.0"}]}`},
			layers, "", "-", "names a library by its place"},
		{"Vulkan SC has a directory of its own", texts{"usr/share/vulkansc/icd.d/nvidia_icd." + ldcache.ABI64.Arch + ".json": icd("libnvidia-vksc-core.so.1", "")},
			"/etc/vulkansc/icd.d/nvidia_icd_vksc.json", "usr/share/vulkansc/icd.d/nvidia_icd." + ldcache.ABI64.Arch + ".json", "", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := drawing(t, "usr/lib64")
			for name, text := range tt.files {
				r.Write(name, text)
			}
			files := r.discover()
			f, ok := given(files, tt.dest)
			switch {
			case ok == (tt.made == "-"):
				t.Errorf("given: %v; refused %+v", ok, files.Refused)
			case tt.host != "" && (f.Path != filepath.Join(r.Dir, tt.host) || f.Data != nil):
				t.Errorf("%+v, want the host's", f)
			case ok && tt.host == "" && (f.Path != "" || !strings.Contains(string(f.Data), tt.made)):
				t.Errorf("from %q: %s", f.Path, f.Data)
			}
			if tt.gone == "" && len(files.Refused) != 0 || tt.gone != "" && (len(files.Refused) != 1 || !strings.Contains(files.Refused[0].Reason, tt.gone)) {
				t.Errorf("refused %+v", files.Refused)
			}
		})
	}
	t.Run("without the library nothing is made", func(t *testing.T) {
		r := newRoot(t)
		r.core("usr/lib64", version)
		if files := r.discover(); len(files.Data) != 0 {
			t.Errorf("%+v", files.Data)
		}
	})
	t.Run("a file that is made is JSON, with a version of Vulkan that the branch has", func(t *testing.T) {
		for branch, want := range map[string]string{"440.1": "1.1.99", "470.223.02": "1.2.133", "535.1": "1.3.194", "580.159.04": "1.4.303", "1000.1": "1.4.303"} {
			text := vulkanJSON("libGLX_nvidia.so.0", branch)
			if !json.Valid([]byte(text)) || !strings.Contains(text, want) || !json.Valid([]byte(platformJSON("x", ""))) {
				t.Errorf("%s: %s, want %s", branch, text, want)
			}
		}
	})
}

// Loaders read these files in the order of their names.
func TestAFileThatIsReadInOrderKeepsItsName(t *testing.T) {
	const egl, glvnd, x11 = "/usr/share/egl/egl_external_platform.d/", "/usr/share/glvnd/egl_vendor.d/", "/usr/share/X11/xorg.conf.d/"
	for _, tt := range []struct{ host, text, dest string }{
		{egl + "99_nvidia_wayland2.json", icd("libnvidia-egl-wayland2.so.1", ""), egl + "99_nvidia_wayland2.json"},
		{egl + "99_nvidia_wayland2.json", icd("/nix/store/a/libnvidia-egl-wayland2.so.1", ""), egl + "99_nvidia_wayland2.json"},
		{egl + "09_nvidia_wayland2.json", icd("libnvidia-egl-wayland2.so.1", ""), egl + "09_nvidia_wayland2.json"},
		{egl + "05_nvidia_gbm.json", icd("libnvidia-egl-gbm.so.1", ""), egl + "05_nvidia_gbm.json"},
		{"/etc/egl/egl_external_platform.d/40_nvidia_xcb.json", icd("libnvidia-egl-xcb.so.1", ""), egl + "40_nvidia_xcb.json"},
		{glvnd + "60_nvidia.json", icd("libEGL_nvidia.so.0", ""), glvnd + "60_nvidia.json"},
		{x11 + "90-nvidia.conf", "", x11 + "90-nvidia.conf"},
		{x11 + "10-nvidia-drm-outputclass.conf", "", x11 + "10-nvidia-drm-outputclass.conf"},
		{x11 + "nvidia-drm-outputclass.conf", "", x11 + "nvidia-drm-outputclass.conf"},
	} {
		t.Run(tt.host, func(t *testing.T) {
			r := drawing(t, "usr/lib64")
			for _, stem := range []string{"wayland2", "gbm", "xcb"} {
				r.lib("usr/lib64/libnvidia-egl-"+stem+".so.1.1.1", "libnvidia-egl-"+stem+".so.1")
			}
			r.Write(tt.host[1:], tt.text)
			r.Write(egl[1:]+"98_nvidia_wayland2.json.rpmnew", "")
			r.Write(glvnd[1:]+"50_mesa.json", "")
			files := r.discover()
			f, ok := given(files, tt.dest)
			usable := !strings.Contains(tt.text, "/nix")
			if !ok || usable != (f.Path == r.Dir+tt.host) || usable == (f.Data != nil) {
				t.Errorf("%v, %+v in %+v", ok, f, files.Data)
			}
			stem := order().ReplaceAllString(filepath.Base(tt.dest), "")
			n := 0
			for _, d := range files.Data {
				if order().ReplaceAllString(filepath.Base(d.Dest), "") == stem {
					n++
				}
			}
			if n != 1 || slices.Contains(f.Copies, tt.dest) {
				t.Errorf("%d files of this name, copies %v", n, f.Copies)
			}
		})
	}
}

func TestLibrariesOf32BitsAreKnownByTheirClassWhereverTheyAre(t *testing.T) {
	for _, dir := range []string{
		"usr/lib", "usr/lib32", "usr/lib/" + ldcache.ABI32.Triple, "usr/lib/" + ldcache.ABI32.Triple + "/nvidia/current", "run/opengl-driver-32/lib",
		"usr/lib/" + ldcache.ABI64.Triple, "usr/lib64", // even there
		"opt/vendor/lib", "opt/vendor/lib32", // beside a directory that is configured
		"opt/other", // by the cache alone
	} {
		t.Run(dir, func(t *testing.T) {
			r := newRoot(t)
			r.core("opt/vendor/lib64", version)
			r.host.DriverLibraries = []string{"/opt/vendor/lib64"}
			r.Write(dir+"/libcuda.so."+version, elf32("libcuda.so.1"))
			r.Write(dir+"/vdpau/libvdpau_nvidia.so."+version, elf32("libvdpau_nvidia.so.1"))
			if dir == "opt/other" {
				r.cache("/opt/other/libcuda.so."+version, "/opt/other/vdpau/libvdpau_nvidia.so."+version)
			}
			var got []string
			for _, l := range r.discover().Libraries {
				if l.Bits == 32 {
					got = append(got, strings.TrimPrefix(l.Path, r.Dir+"/"))
				}
			}
			slices.Sort(got)
			if want := []string{dir + "/libcuda.so." + version, dir + "/vdpau/libvdpau_nvidia.so." + version}; !slices.Equal(got, want) {
				t.Errorf("got %v, want %v", got, want)
			}
		})
	}
}

func TestModulesOfTheXServerAreFoundWhereverTheHostHasThem(t *testing.T) {
	glx := "libglxserver_nvidia.so"
	for _, tt := range []struct{ name, driver, extension string }{
		{"Debian and NVIDIA's installer", "usr/lib/xorg/modules/drivers/nvidia_drv.so", "usr/lib/xorg/modules/extensions/" + glx},
		{"Fedora", "usr/lib64/xorg/modules/drivers/nvidia_drv.so", "usr/lib64/xorg/modules/extensions/" + glx},
		{"Ubuntu", "usr/lib/" + ldcache.ABI64.Triple + "/nvidia/xorg/nvidia_drv.so", "usr/lib/" + ldcache.ABI64.Triple + "/nvidia/xorg/" + glx},
		{"Arch", "usr/lib/xorg/modules/drivers/nvidia_drv.so", "usr/lib/nvidia/xorg/" + glx},
		{"Debian without alternatives", "usr/lib/nvidia/current/nvidia_drv.so", "usr/lib/nvidia/current/" + glx},
		{"openSUSE", "usr/lib64/xorg/modules/updates/drivers/nvidia_drv.so", "usr/lib64/xorg/modules/updates/extensions/" + glx},
		{"a tree of the driver's own", "opt/nvidia/lib64/xorg/modules/drivers/nvidia_drv.so", "opt/nvidia/lib64/xorg/modules/extensions/" + glx},
		{"without the link", "usr/lib/xorg/modules/drivers/nvidia_drv.so", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newRoot(t)
			r.core("opt/nvidia/lib64", version)
			r.host.DriverLibraries = []string{"/opt/nvidia/lib64"}
			r.Write(tt.driver, "")
			real := "usr/lib/xorg/modules/extensions/" + glx + "." + version
			if tt.extension != "" {
				real = tt.extension + "." + version
				r.Link(tt.extension, glx+"."+version)
			}
			r.Write(real, "")
			files := r.discover()
			drv, _ := given(files, "drivers/nvidia_drv.so")
			ext, _ := given(files, "extensions/"+glx)
			if drv.Path != filepath.Join(r.Dir, tt.driver) || ext.Path != filepath.Join(r.Dir, real) {
				t.Errorf("%+v, %+v", drv, ext)
			}
		})
	}
	t.Run("of another version it is not taken", func(t *testing.T) {
		r := newRoot(t)
		r.Write("usr/lib/xorg/modules/extensions/"+glx+".570.1", "")
		r.Link("usr/lib/xorg/modules/extensions/"+glx, glx+".570.1")
		if f, ok := given(r.discover(), "extensions/"+glx); ok {
			t.Errorf("%+v", f)
		}
	})
}

func TestNGXForWineIsBesideTheLibraries(t *testing.T) {
	for _, dir := range []string{"usr/lib/" + ldcache.ABI64.Triple, "usr/lib64", "usr/local/nvidia/lib64"} {
		r := drawing(t, dir)
		r.lib(dir+"/libnvidia-ngx.so."+version, "libnvidia-ngx.so.1")
		for _, name := range []string{"nvngx.dll", "_nvngx.dll", "other.dll"} {
			r.Write(dir+"/nvidia/wine/"+name, "MZ")
		}
		files := r.settled()
		got := files.For([]string{"ngx"})
		if want := []string{"libnvidia-ngx.so." + version, "nvidia/wine/nvngx.dll", "nvidia/wine/_nvngx.dll"}; !slices.Equal(libraryNames(got), want) {
			t.Errorf("got %v, want %v", libraryNames(got), want)
		}
		r.Check(os.Remove(r.Dir + "/" + dir + "/nvidia/wine/nvngx.dll"))
		if files.Fresh(r.host, version) {
			t.Error("fresh although one was removed")
		}
	}
}
