package driver

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host/device"
)

// server are the programs that a server's driver has, in the order of binaryKinds.
var server = []string{"nvidia-smi", "nvidia-debugdump", "nvidia-persistenced", "nvidia-cuda-mps-control", "nvidia-cuda-mps-server"}

// all installs every library of hosts.md 1 into a directory, VDPAU's in vdpau below it.
func (r *fakeRoot) all(dir string) {
	for _, soname := range h200 {
		stem, _, _ := split(soname)
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
		stem, _, _ := split(soname)
		r.write(dir+"/"+stem+".so."+version, elf32(arch.machine32, soname), 0o755)
	}
}

func (r *fakeRoot) programs(dir string) {
	for _, name := range append([]string{"nvidia-modprobe", "nvidia-settings"}, server...) {
		r.write(dir+"/"+name, nil, 0o755)
	}
}

// files makes data files; a name ends in what a data directory has.
func (r *fakeRoot) files(names ...string) {
	for _, name := range names {
		r.write(name, []byte(`{"file_format_version": "1.0.0", "ICD": {"library_path": "libGLX_nvidia.so.0"}}`), 0o644)
	}
}

// odd hosts, each after its vendor's packages. Paths are in the driver root.
var hosts = []struct {
	name  string
	build func(r *fakeRoot)
	// cuda and smi are where libcuda and nvidia-smi really are.
	cuda, smi string
	// data are the host's own data files that containers get, sorted.
	data []string
	n32  int
	// programs, where the host has fewer than server.
	programs int
	missing  []string
}{
	{
		name: "Debian, NVIDIA's installer", cuda: "/usr/lib/TRIPLE", smi: "/usr/bin", n32: 3,
		build: func(r *fakeRoot) {
			r.link("lib", "usr/lib")
			r.all("usr/lib/" + arch.triple)
			r.all32("usr/lib/" + arch.triple32)
			r.programs("usr/bin")
			r.files("usr/share/glvnd/egl_vendor.d/10_nvidia.json", "etc/vulkan/icd.d/nvidia_icd.json", "etc/OpenCL/vendors/nvidia.icd")
			r.cache("/lib/"+arch.triple+"/libcuda.so.1", "/lib/"+arch.triple+"/libnvidia-ml.so.1")
		},
		data: []string{
			"/etc/OpenCL/vendors/nvidia.icd",
			"/etc/vulkan/icd.d/nvidia_icd.json",
			"/usr/share/glvnd/egl_vendor.d/10_nvidia.json",
		},
	},
	{
		name: "Debian's packages, by alternatives", cuda: "/usr/lib/TRIPLE/nvidia/current", smi: "/usr/lib/nvidia/current",
		build: func(r *fakeRoot) {
			current := "usr/lib/" + arch.triple + "/nvidia/current"
			r.all(current)
			for _, soname := range h200 {
				r.link("etc/alternatives/nvidia--"+soname, "/"+current+"/"+soname)
				r.link("usr/lib/"+arch.triple+"/"+soname, "/etc/alternatives/nvidia--"+soname)
			}
			r.programs("usr/lib/nvidia/current")
			for _, name := range server {
				r.link("etc/alternatives/nvidia--"+name, "/usr/lib/nvidia/current/"+name)
				r.link("usr/bin/"+name, "/etc/alternatives/nvidia--"+name)
			}
			r.files("usr/lib/nvidia/current/nvidia_icd.json")
			r.link("etc/vulkan/icd.d/nvidia_icd.json", "/etc/alternatives/nvidia--nvidia_icd.json")
			r.link("etc/alternatives/nvidia--nvidia_icd.json", "/usr/lib/nvidia/current/nvidia_icd.json")
		},
		data: []string{
			"/usr/lib/nvidia/current/nvidia_icd.json",
		},
	},
	{
		name: "Ubuntu", cuda: "/usr/lib/TRIPLE", smi: "/usr/bin", n32: 3,
		build: func(r *fakeRoot) {
			r.link("lib", "usr/lib")
			r.all("usr/lib/" + arch.triple)
			r.all32("usr/lib/" + arch.triple32)
			r.programs("usr/bin")
			r.files("usr/share/vulkan/icd.d/nvidia_icd.json", "usr/share/vulkan/implicit_layer.d/nvidia_layers.json", "usr/share/nvidia/nvoptix.bin",
				"usr/lib/xorg/modules/drivers/nvidia_drv.so")
			r.cache("/lib/" + arch.triple + "/libcuda.so.1")
		},
		data: []string{
			"/usr/lib/xorg/modules/drivers/nvidia_drv.so",
			"/usr/share/nvidia/nvoptix.bin",
			"/usr/share/vulkan/icd.d/nvidia_icd.json",
			"/usr/share/vulkan/implicit_layer.d/nvidia_layers.json",
		},
	},
	{
		name: "RHEL and Fedora", cuda: "/usr/lib64", smi: "/usr/bin", n32: 3,
		build: func(r *fakeRoot) {
			r.link("lib64", "usr/lib64")
			r.link("lib", "usr/lib")
			r.all("usr/lib64")
			r.all32("usr/lib")
			r.programs("usr/bin")
			r.files("usr/share/vulkan/icd.d/nvidia_icd."+machine+".json", "usr/share/egl/egl_external_platform.d/15_nvidia_gbm.json", "etc/OpenCL/vendors/nvidia.icd")
			r.cache("/lib64/libcuda.so.1", "/lib64/libnvidia-ml.so.1")
		},
		data: []string{
			"/etc/OpenCL/vendors/nvidia.icd",
			"/usr/share/egl/egl_external_platform.d/15_nvidia_gbm.json",
			"/usr/share/vulkan/icd.d/nvidia_icd." + machine + ".json",
		},
	},
	{
		name: "Amazon Linux", cuda: "/usr/lib64", smi: "/usr/bin",
		build: func(r *fakeRoot) {
			r.link("lib64", "usr/lib64")
			r.all("usr/lib64")
			r.programs("usr/bin")
			r.cache("/lib64/libcuda.so.1")
		},
	},
	{
		name: "SUSE", cuda: "/usr/lib64", smi: "/usr/bin", n32: 3,
		build: func(r *fakeRoot) {
			r.all("usr/lib64")
			r.all32("usr/lib")
			r.programs("usr/bin")
			r.files("usr/lib64/xorg/modules/drivers/nvidia_drv.so", "usr/share/vulkan/icd.d/nvidia_icd."+machine+".json")
			r.cache("/usr/lib64/libcuda.so.1")
		},
		data: []string{
			"/usr/lib64/xorg/modules/drivers/nvidia_drv.so",
			"/usr/share/vulkan/icd.d/nvidia_icd." + machine + ".json",
		},
	},
	{
		name: "Arch Linux", cuda: "/usr/lib", smi: "/usr/bin", n32: 3,
		build: func(r *fakeRoot) {
			for _, name := range []string{"lib", "lib64", "usr/lib64"} {
				r.link(name, map[string]string{"usr/lib64": "lib"}[name]+map[string]string{"lib": "usr/lib", "lib64": "usr/lib"}[name])
			}
			r.all("usr/lib")
			r.all32("usr/lib32")
			r.programs("usr/bin")
			r.files("usr/share/glvnd/egl_vendor.d/10_nvidia.json", "usr/share/vulkan/icd.d/nvidia_icd.json", "usr/lib/xorg/modules/drivers/nvidia_drv.so")
			r.cache("/usr/lib/libcuda.so.1")
		},
		data: []string{
			"/usr/lib/xorg/modules/drivers/nvidia_drv.so",
			"/usr/share/glvnd/egl_vendor.d/10_nvidia.json",
			"/usr/share/vulkan/icd.d/nvidia_icd.json",
		},
	},
	{
		name: "GKE with Container-Optimized OS", cuda: "/home/kubernetes/bin/nvidia/lib64", smi: "/home/kubernetes/bin/nvidia/bin",
		build: func(r *fakeRoot) {
			r.all("home/kubernetes/bin/nvidia/lib64")
			r.programs("home/kubernetes/bin/nvidia/bin")
			r.files("home/kubernetes/bin/nvidia/vulkan/icd.d/nvidia_icd.json")
			r.cache("/lib64/libc.so.6")
		},
		data: []string{
			"/home/kubernetes/bin/nvidia/vulkan/icd.d/nvidia_icd.json",
		},
	},
	{
		name: "a squashfs at /usr/local/nvidia", cuda: "/usr/local/nvidia/lib64", smi: "/usr/local/nvidia/bin",
		build: func(r *fakeRoot) {
			r.all("usr/local/nvidia/lib64")
			r.programs("usr/local/nvidia/bin")
			r.files("usr/local/nvidia/share/glvnd/egl_vendor.d/10_nvidia.json", "usr/local/nvidia/share/vulkan/icd.d/nvidia_icd.json")
			r.lib("lib/libcuda.so."+version, "libcuda.so.1")
			r.cache("/usr/local/nvidia/lib64/libcuda.so.1", "/lib/libcuda.so.1")
		},
		data: []string{
			"/usr/local/nvidia/share/glvnd/egl_vendor.d/10_nvidia.json",
			"/usr/local/nvidia/share/vulkan/icd.d/nvidia_icd.json",
		},
	},
	{
		name: "Talos, with the glibc extension", cuda: "/usr/local/glibc/usr/lib", smi: "/usr/local/bin",
		build: func(r *fakeRoot) {
			r.all("usr/local/glibc/usr/lib")
			r.programs("usr/local/bin")
			r.write("usr/local/glibc/etc/ld.so.cache", nil, 0o644)
			r.files("usr/local/glibc/etc/vulkan/icd.d/nvidia_icd.json", "usr/local/glibc/usr/share/glvnd/egl_vendor.d/10_nvidia.json")
		},
		data: []string{
			"/usr/local/glibc/etc/vulkan/icd.d/nvidia_icd.json",
			"/usr/local/glibc/usr/share/glvnd/egl_vendor.d/10_nvidia.json",
		},
	},
	{
		name: "Talos, driver in the glibc extension's prefix", cuda: "/usr/local/glibc/usr/lib64", smi: "/usr/local/glibc/usr/bin",
		build: func(r *fakeRoot) {
			r.all("usr/local/glibc/usr/lib64")
			r.programs("usr/local/glibc/usr/bin")
			r.files("usr/local/glibc/etc/OpenCL/vendors/nvidia.icd", "usr/local/glibc/usr/share/glvnd/egl_vendor.d/10_nvidia.json")
		},
		data: []string{
			"/usr/local/glibc/etc/OpenCL/vendors/nvidia.icd",
			"/usr/local/glibc/usr/share/glvnd/egl_vendor.d/10_nvidia.json",
		},
	},
	{
		name: "Talos, driver in /usr/local", cuda: "/usr/local/lib", smi: "/usr/local/bin",
		build: func(r *fakeRoot) {
			r.all("usr/local/lib")
			r.programs("usr/local/bin")
			r.link("usr/bin/nvidia-smi", "/usr/local/bin/nvidia-smi")
			r.files("etc/vulkan/icd.d/nvidia_icd.json", "usr/share/glvnd/egl_vendor.d/10_nvidia.json")
		},
		data: []string{
			"/etc/vulkan/icd.d/nvidia_icd.json",
			"/usr/share/glvnd/egl_vendor.d/10_nvidia.json",
		},
	},
	{
		name: "NixOS", cuda: "/nix/store/aaa-nvidia-x11/lib", smi: "/nix/store/bbb-nvidia-x11-bin/bin",
		build: func(r *fakeRoot) {
			r.all("nix/store/aaa-nvidia-x11/lib")
			r.files("nix/store/aaa-nvidia-x11/share/glvnd/egl_vendor.d/10_nvidia.json", "nix/store/aaa-nvidia-x11/share/vulkan/icd.d/nvidia_icd."+machine+".json")
			// A buildEnv: a directory of links to each package's files.
			entries, err := filepath.Glob(r.dir + "/nix/store/aaa-nvidia-x11/lib/*")
			r.check(err)
			for _, e := range entries {
				r.link("nix/store/ccc-graphics-drivers/lib/"+filepath.Base(e), strings.TrimPrefix(e, r.dir))
			}
			r.link("nix/store/ccc-graphics-drivers/share", "/nix/store/aaa-nvidia-x11/share")
			r.link("run/opengl-driver", "/nix/store/ccc-graphics-drivers")
			r.programs("nix/store/bbb-nvidia-x11-bin/bin")
			for _, name := range server {
				r.link("nix/store/ddd-system-path/bin/"+name, "/nix/store/bbb-nvidia-x11-bin/bin/"+name)
			}
			r.link("nix/store/eee-nixos-system/sw", "/nix/store/ddd-system-path")
			r.link("run/current-system", "/nix/store/eee-nixos-system")
		},
		data: []string{
			"/nix/store/aaa-nvidia-x11/share/glvnd/egl_vendor.d/10_nvidia.json",
			"/nix/store/aaa-nvidia-x11/share/vulkan/icd.d/nvidia_icd." + machine + ".json",
		},
	},
	{
		name: "Flatcar's sysext, found by ld.so.cache", cuda: "/opt/nvidia/580/usr/lib64", smi: "/opt/bin",
		build: func(r *fakeRoot) {
			r.all("opt/nvidia/580/usr/lib64")
			r.link("opt/nvidia/current", "580")
			r.programs("opt/bin")
			r.cache("/opt/nvidia/current/usr/lib64/libcuda.so.1", "/opt/nvidia/current/usr/lib64/libnvidia-ml.so.1")
		},
	},
	{
		name: "Bottlerocket", cuda: "/bottlerocket/sys-root/usr/lib/nvidia/tesla", smi: "/bottlerocket/sys-root/usr/bin",
		build: func(r *fakeRoot) {
			sys := "bottlerocket/sys-root"
			r.link("usr", sys+"/usr")
			r.all(sys + "/usr/lib/nvidia/tesla")
			r.lib(sys+"/usr/lib/nvidia/tesla/libGL.so.1.7.0", "libGL.so.1")
			r.programs(sys + "/usr/bin")
			for _, name := range server {
				r.link(sys+"/usr/libexec/nvidia/tesla/bin/"+name, "../../../../bin/"+name)
			}
			r.files(sys+"/usr/share/vulkan/icd.d/nvidia_icd.json", sys+"/usr/share/glvnd/egl_vendor.d/10_nvidia.json", sys+"/usr/share/nvidia/nvoptix.bin")
		},
		data: []string{
			"/bottlerocket/sys-root/usr/share/glvnd/egl_vendor.d/10_nvidia.json",
			"/bottlerocket/sys-root/usr/share/nvidia/nvoptix.bin",
			"/bottlerocket/sys-root/usr/share/vulkan/icd.d/nvidia_icd.json",
		},
	},
	{
		name: "a compute-only server driver", cuda: "/usr/lib64", smi: "/usr/bin", programs: 1,
		build: func(r *fakeRoot) {
			r.core("usr/lib64", version)
			r.write("usr/bin/nvidia-smi", nil, 0o755)
		},
		missing: []string{"video: libnvcuvid.so.V", "video: libnvidia-encode.so.V", "graphics: libGLX_nvidia.so.V", "graphics: libEGL_nvidia.so.V"},
	},
}

// Every host of docs/install.md, for both machines: what is found on it, and where.
func TestHosts(t *testing.T) {
	native := arch
	t.Cleanup(func() { arch = native })
	for _, machine := range []string{"amd64", "arm64"} {
		for _, tt := range hosts {
			t.Run(tt.name+", "+machine, func(t *testing.T) {
				arch = architectures[machine]
				r := newRoot(t)
				tt.build(r)
				files := r.discover()
				checkHost(t, r, files, strings.ReplaceAll(tt.cuda, "TRIPLE", arch.triple), tt.smi)
				n32 := 0
				for _, l := range files.Libraries {
					if l.Bits == 32 {
						n32++
					}
				}
				if n32 != tt.n32 {
					t.Errorf("%d 32-bit libraries, want %d", n32, tt.n32)
				}
				want := len(h200) + 1 // nvidia-drm_gbm.so
				if tt.missing != nil {
					want = 2
				}
				if n := len(files.Libraries) - n32; n != want {
					t.Errorf("%d libraries, want %d: %v", n, want, libraryNames(files))
				}
				if want := map[bool]int{true: len(server), false: tt.programs}[tt.programs == 0]; len(files.Binaries) != want {
					t.Errorf("%d programs, want %d: %+v", len(files.Binaries), want, files.Binaries)
				}
				var data []string
				for _, d := range files.Data {
					if d.Path != "" { // else it is made
						data = append(data, strings.TrimPrefix(d.Path, r.dir))
					}
				}
				slices.Sort(data)
				if !slices.Equal(data, tt.data) {
					t.Errorf("data %v, want %v", data, tt.data)
				}
				var missing []string
				for _, m := range append(slices.Clone(tt.missing), "ngx: libnvidia-ngx.so.V") {
					missing = append(missing, strings.ReplaceAll(m, ".so.V", ".so."+version))
				}
				if !slices.Equal(files.Missing, missing) {
					t.Errorf("missing %v, want %v", files.Missing, missing)
				}
				if len(files.Refused) != 0 {
					t.Errorf("refused %v", files.Refused)
				}
				checkNodes(t, r)
			})
		}
	}
}

// The table of hosts in the documentation is the one above, and those that other tests
// are about.
func TestHostsAreTheDocumentations(t *testing.T) {
	page, err := os.ReadFile("../../docs/install.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(page), "\n## Hosts\n")
	section, _, _ = strings.Cut(section, "\n## ")
	known := []string{
		"a driver container (GPU operator)", // TestDriverContainerRoot
		"WSL2",                              // TestDiscoverWSL
		"Tegra (Jetson)",                    // TestDiscoverTegra
		"a container (a node of kind)",      // TestAHostThatIsAContainerHasTheGPUsThatItWasGiven
		"a compute-only server driver",
	}
	for _, h := range hosts {
		known = append(known, h.name)
	}
	documented := []string{"a compute-only server driver"}
	for line := range strings.Lines(section) {
		cells := strings.Split(line, "|")
		if len(cells) < 4 || strings.TrimSpace(cells[1]) == "Host" || strings.HasPrefix(cells[1], "---") {
			continue
		}
		for _, name := range strings.Split(strings.TrimSpace(cells[1]), ", ") {
			documented = append(documented, name)
			if !slices.ContainsFunc(known, func(k string) bool { return strings.HasPrefix(k, name) }) {
				t.Errorf("docs/install.md has a host %q that no test is about", name)
			}
		}
	}
	for _, k := range known {
		if !slices.ContainsFunc(documented, func(d string) bool { return strings.HasPrefix(k, d) }) {
			t.Errorf("docs/install.md has no host %q", k)
		}
	}
}

func checkHost(t *testing.T, r *fakeRoot, files *Files, cuda, smi string) {
	t.Helper()
	if err := files.Check([]string{"compute", "utility"}); err != nil {
		t.Fatal(err)
	}
	l := r.library(files, "libcuda.so."+version)
	if l.Path != filepath.Join(r.dir, cuda, l.Name) || l.SOName != "libcuda.so.1" || l.Bits != 64 || files.Version != version {
		t.Errorf("libcuda is %+v, want it in %s", l, cuda)
	}
	if len(files.Binaries) == 0 || files.Binaries[0].Path != filepath.Join(r.dir, smi, "nvidia-smi") {
		t.Errorf("programs %+v, want nvidia-smi in %s", files.Binaries, smi)
	}
}

// checkNodes gives the host a GPU and finds it: procfs and nodes are the same
// wherever the files are.
func checkNodes(t *testing.T, r *fakeRoot) {
	t.Helper()
	r.write("proc/driver/nvidia/version", []byte("NVRM version: NVIDIA UNIX Open Kernel Module for "+map[bool]string{true: "aarch64", false: "x86_64"}[arch.triple == "aarch64-linux-gnu"]+
		"  "+version+"  Release Build  (x)\n"), 0o444)
	r.write("proc/devices", []byte("Character devices:\n195 nvidia\n195 nvidiactl\n511 nvidia-uvm\n\nBlock devices:\n"), 0o444)
	r.write("proc/driver/nvidia/gpus/0009:01:00.0/information", []byte("Model: \t\t NVIDIA GH200 480GB\nGPU UUID: \t GPU-11111111-1111-2222-3333-444444444444\nDevice Minor: \t 0\nGPU Excluded:\t No\n"), 0o444)
	r.check(os.MkdirAll(r.dir+"/dev", 0o755))
	for name, dev := range map[string][2]uint32{"nvidiactl": {195, 255}, "nvidia0": {195, 0}, "nvidia-uvm": {511, 0}} {
		r.check(unix.Mknod(r.dir+"/dev/"+name, unix.S_IFCHR|0o666, int(unix.Mkdev(dev[0], dev[1]))))
	}
	inv, err := device.Discover(device.Roots{Proc: r.dir + "/proc", Dev: r.dir, Sys: r.dir + "/sys"})
	r.check(err)
	if inv.DriverVersion != version || len(inv.GPUs) != 1 {
		t.Fatalf("%+v", inv)
	}
	nodes, err := inv.Nodes(device.Set{GPUs: inv.GPUs}, []string{"compute", "utility"})
	r.check(err)
	var got []string
	for _, n := range nodes {
		got = append(got, fmt.Sprintf("%s %d:%d", n.Path, n.Major, n.Minor))
	}
	if want := []string{"/dev/nvidiactl 195:255", "/dev/nvidia0 195:0", "/dev/nvidia-uvm 511:0"}; !slices.Equal(got, want) {
		t.Errorf("nodes %v, want %v", got, want)
	}
}

// The places of hosts that build their own image cost nothing where the driver is
// where it usually is.
func TestOtherPlacesAreLookedAtOnlyWithoutADriver(t *testing.T) {
	r := newRoot(t)
	r.core("usr/lib64", version)
	for _, w := range r.discover().Watched {
		if strings.Contains(w, "glibc") || strings.Contains(w, "tesla") || strings.Contains(w, "wsl") || strings.HasPrefix(w[1:], "/usr/local/lib") {
			t.Errorf("%s is looked at for each container", w)
		}
	}
	empty := newRoot(t)
	files := empty.discover()
	for _, dir := range []string{"/usr/local/glibc/usr/lib", "/usr/lib/nvidia/tesla"} {
		if !slices.Contains(files.Watched, string(inRoot)+dir) {
			t.Errorf("%s is not watched where no driver was found", dir)
		}
	}
}
