package driver

import (
	"debug/elf"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/ldcache"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testtree"
)

// h200 are the SONAMEs of the libraries of a host with H200 GPUs.
var h200 = []string{
	"libEGL_nvidia.so.0", "libGLESv1_CM_nvidia.so.1", "libGLESv2_nvidia.so.2", "libGLX_nvidia.so.0", "libcuda.so.1",
	"libcudadebugger.so.1", "libnvcuvid.so.1", "libnvidia-allocator.so.1", "libnvidia-cfg.so.1", "libnvidia-eglcore.so." + version,
	"libnvidia-encode.so.1", "libnvidia-fbc.so.1", "libnvidia-glcore.so." + version, "libnvidia-glsi.so." + version,
	"libnvidia-glvkspirv.so." + version, "libnvidia-gpucomp.so." + version, "libnvidia-ml.so.1", "libnvidia-nvvm.so.4",
	"libnvidia-opencl.so.1", "libnvidia-opticalflow.so.1", "libnvidia-pkcs11-openssl3.so." + version,
	"libnvidia-ptxjitcompiler.so.1", "libnvidia-rtcore.so." + version, "libnvidia-tls.so." + version, "libnvoptix.so.1", "libvdpau_nvidia.so.1",
}

// squashfs makes a layout seen on a real host: everything below /usr/local/nvidia, and a second
// libcuda in /lib.
func squashfs(t testing.TB) *fakeRoot {
	r := newRoot(t)
	r.all("usr/local/nvidia/lib64")
	r.lib("lib/libcuda.so."+version, "libcuda.so.1")
	r.cache("/usr/local/nvidia/lib64/libcuda.so.1", "/lib/libcuda.so.1", "/lib/libc.so.6")
	r.programs("usr/local/nvidia/bin")
	for _, name := range []string{"glvnd/egl_vendor.d/10_nvidia.json", "vulkan/icd.d/nvidia_icd.json", "vulkan/implicit_layer.d/nvidia_layers.json"} {
		r.Write("usr/local/nvidia/share/"+name, "{}")
	}
	return r
}

func TestDiscoverSquashfs(t *testing.T) {
	r := squashfs(t)
	files := r.discover()
	if n := len(h200) + 1; len(files.Libraries) != n {
		t.Errorf("%d libraries, want %d: %v", len(files.Libraries), n, libraryNames(files))
	}
	t.Run("of two copies the one that ld.so.cache lists first is taken", func(t *testing.T) {
		l := r.library(files, "libcuda.so."+version)
		if l.Path != r.Dir+"/usr/local/nvidia/lib64/libcuda.so."+version {
			t.Errorf("took %s", l.Path)
		}
		if l.SOName != "libcuda.so.1" || !slices.Equal(l.Links, []string{"libcuda.so.1", "libcuda.so"}) || l.Bits != 64 || l.Flags == 0 {
			t.Errorf("got %+v", l)
		}
		r.cache("/lib/libcuda.so.1", "/usr/local/nvidia/lib64/libcuda.so.1")
		if l := r.library(r.discover(), "libcuda.so."+version); l.Path != r.Dir+"/lib/libcuda.so."+version {
			t.Errorf("with the other order took %s", l.Path)
		}
	})
	t.Run("special names get their links and subdirectories", func(t *testing.T) {
		if l := r.library(files, "libGLX_nvidia.so."+version); !slices.Equal(l.Links, []string{"libGLX_nvidia.so.0", "libGLX_indirect.so.0"}) {
			t.Errorf("%+v", l)
		}
		if l := r.library(files, "libvdpau_nvidia.so."+version); l.Subdir != "vdpau" {
			t.Errorf("%+v", l)
		}
		if l := r.library(files, "nvidia-drm_gbm.so"); l.Subdir != "gbm" || filepath.Base(l.Path) != "libnvidia-allocator.so."+version || len(l.Links) != 0 {
			t.Errorf("%+v", l)
		}
		if l := r.library(files, "libnvidia-glcore.so."+version); len(l.Links) != 0 {
			t.Errorf("a SONAME that is the name needs no link: %+v", l)
		}
	})
}

// A driver root that another party filled.
func TestT63DriverContainer(t *testing.T) {
	t.Run("absolute links stay in the driver root", func(t *testing.T) {
		r := newRoot(t)
		real := r.lib("opt/real/libcuda.so."+version, "libcuda.so.1")
		r.Link("usr/lib64/libcuda.so.1", "/opt/real/libcuda.so."+version)
		if l := r.library(r.discover(), "libcuda.so."+version); l.Path != real {
			t.Errorf("%+v", l)
		}
	})
	t.Run("links to files of the host lead nowhere", func(t *testing.T) {
		r := newRoot(t)
		outside := newRoot(t)
		secret := outside.lib("libcuda.so."+version, "libcuda.so.1")
		up := strings.Repeat("../", 20)
		r.Link("usr/lib64/libcuda.so."+version, secret)
		r.Link("usr/lib64/libnvidia-ml.so."+version, up+secret)
		r.Link("usr/bin/nvidia-smi", "/etc/shadow")
		r.Link("usr/bin/nvidia-debugdump", "/proc/1/root/bin/sh")
		r.Link("etc/OpenCL/vendors/nvidia.icd", up+"etc/shadow")
		r.Link("home/kubernetes/bin/nvidia/lib64", outside.Dir)
		files := r.discover()
		if len(files.Libraries)+len(files.Binaries)+len(files.Data) != 0 {
			t.Errorf("got %+v %+v %+v", files.Libraries, files.Binaries, files.Data)
		}
	})
	t.Run("a magic link is not followed even where it exists in the root", func(t *testing.T) {
		r := newRoot(t)
		r.core("lib64", version)
		r.host.DriverRoot, r.host.DriverLibraries = "/", []string{r.Dir + "/links"}
		r.Link("links/libcuda.so."+version, "/proc/self/root"+r.Dir+"/lib64/libcuda.so."+version)
		if files := r.discover(); len(files.Libraries) != 0 {
			t.Errorf("got %v", libraryNames(files))
		}
	})
	for _, tt := range []struct {
		name, reason string
		change       func(r *fakeRoot, path string)
	}{
		{"a set-user-id file is refused", "set-user-id", func(r *fakeRoot, p string) { r.Check(os.Chmod(p, 0o755|os.ModeSetuid)) }},
		{"a set-group-id file is refused", "set-user-id or set-group-id", func(r *fakeRoot, p string) { r.Check(os.Chmod(p, 0o755|os.ModeSetgid)) }},
		{"a file that everybody can write is refused", "writable by users other than root", func(r *fakeRoot, p string) { r.Check(os.Chmod(p, 0o757)) }},
		{"a file that its group can write is refused", "writable by users other than root", func(r *fakeRoot, p string) { r.Check(os.Chmod(p, 0o775)) }},
		{"a file of another owner is refused", "uid 1000", func(r *fakeRoot, p string) { r.Check(os.Chown(p, 1000, 0)) }},
		{"a text file is refused", "not a shared library", func(r *fakeRoot, p string) { r.Check(os.WriteFile(p, []byte("INPUT(libcuda.so.1)"), 0o755)) }},
		{"a library of another machine is refused", "another machine", func(r *fakeRoot, p string) {
			r.Check(os.WriteFile(p, []byte(testtree.Library(elf.ELFCLASS64, ldcache.ABI64.Machine+1, "libcuda.so.1")), 0o755))
		}},
		{"a library of x32 is refused", "another machine", func(r *fakeRoot, p string) {
			r.Check(os.WriteFile(p, []byte(testtree.Library(elf.ELFCLASS32, ldcache.ABI64.Machine, "libcuda.so.1")), 0o755))
		}},
		{"a 64-bit library of the 32-bit machine is refused", "another machine", func(r *fakeRoot, p string) {
			r.Check(os.WriteFile(p, []byte(testtree.Library(elf.ELFCLASS64, ldcache.ABI32.Machine, "libcuda.so.1")), 0o755))
		}},
		{"a SONAME with a slash is refused", "SONAME", func(r *fakeRoot, p string) { r.Check(os.WriteFile(p, []byte(elf64("../../etc/passwd")), 0o755)) }},
		{"a directory in place of a library is refused", "not a regular file", func(r *fakeRoot, p string) { r.Check(os.Remove(p)); r.Check(os.Mkdir(p, 0o755)) }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newRoot(t)
			r.core("usr/lib64", version)
			name := "libcuda.so." + version
			tt.change(r, r.Dir+"/usr/lib64/"+name)
			files := r.discover()
			if slices.Contains(libraryNames(files), name) {
				t.Error("taken")
			}
			if got := refusal(files, name); !strings.Contains(got, tt.reason) {
				t.Errorf("reason %q, want %q", got, tt.reason)
			}
			if tt.name != "a directory in place of a library is refused" {
				testtree.Says(t, files.Check([]string{"compute"}), name, "refused", tt.reason)
			}
		})
	}
	t.Run("a refused library is that of its capabilities, unless there is another copy", func(t *testing.T) {
		r := newRoot(t)
		r.core("usr/lib64", version)
		name := "libnvidia-nvvm.so." + version
		r.Check(os.Chmod(r.lib("usr/lib64/"+name, "libnvidia-nvvm.so.4"), 0o666))
		refused := func(caps ...string) int {
			files := r.discover()
			short := files.Short(caps)
			if !slices.Equal(short.RefusedFor(caps), files.RefusedFor(caps)) {
				t.Errorf("of the short list %v, of the long one %v", short.RefusedFor(caps), files.RefusedFor(caps))
			}
			return len(files.RefusedFor(caps))
		}
		if n := refused("compute", "utility"); n != 1 {
			t.Errorf("%d refused", n)
		}
		if n := refused("utility"); n != 0 {
			t.Errorf("%d refused for another capability", n)
		}
		r.lib("usr/lib/"+name, "libnvidia-nvvm.so.4")
		if n := refused("compute"); n != 0 {
			t.Errorf("%d refused beside a copy", n)
		}
	})
	t.Run("a set-user-id program is refused", func(t *testing.T) {
		r := newRoot(t)
		r.Check(os.Chmod(r.Write("usr/bin/nvidia-smi", ""), 0o755|os.ModeSetuid))
		files := r.discover()
		if len(files.Binaries) != 0 || len(files.Refused) != 1 {
			t.Errorf("got %+v, refused %+v", files.Binaries, files.Refused)
		}
	})
	t.Run("an ld.so.cache that everybody can write is not read", func(t *testing.T) {
		r := newRoot(t)
		r.core("opt/elsewhere", version)
		r.cache("/opt/elsewhere/libcuda.so.1")
		r.Check(os.Chmod(r.Dir+"/etc/ld.so.cache", 0o666))
		if files := r.discover(); len(files.Libraries) != 0 || refusal(files, "ld.so.cache") == "" {
			t.Errorf("got %v, refused %v", libraryNames(files), files.Refused)
		}
	})
	t.Run("a directory that everybody can write is not searched", func(t *testing.T) {
		r := newRoot(t)
		r.core("usr/lib64", version)
		r.Check(os.Chmod(r.Dir+"/usr/lib64", 0o777))
		if files := r.discover(); len(files.Libraries) != 0 || refusal(files, "lib64") == "" {
			t.Errorf("got %v, refused %v", libraryNames(files), files.Refused)
		}
	})
	t.Run("a directory that its group can write is searched, as Debian's /usr/local", func(t *testing.T) {
		r := newRoot(t)
		r.core("usr/lib64", version)
		r.Check(os.Chmod(r.Dir+"/usr/lib64", 0o2775))
		if files := r.discover(); len(files.Libraries) != 2 || len(files.Refused) != 0 {
			t.Errorf("got %v, refused %v", libraryNames(files), files.Refused)
		}
	})
	t.Run("a driver root that does not exist is an error that names the key", func(t *testing.T) {
		r := newRoot(t)
		r.host.DriverRoot += "/none"
		_, err := Discover(r.host, version)
		testtree.Says(t, err, "host.driver-root", r.host.DriverRoot)
	})
	t.Run("a version that could be a path is an error", func(t *testing.T) {
		r := newRoot(t)
		for _, v := range []string{"", "../580", "580 "} {
			_, err := Discover(r.host, v)
			testtree.Says(t, err, "not a driver version")
		}
	})
}
