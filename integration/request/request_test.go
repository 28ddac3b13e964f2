package request

import (
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/moby/sys/mountinfo"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simdriver/sim"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simhost"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testenv"
)

func TestMain(m *testing.M) { simhost.Main(m) }

// Every documented way to name a GPU.
func TestAGPUCanBeNamedInEveryDocumentedWay(t *testing.T) {
	testenv.EachCgroup(t, func(t *testing.T, version int) {
		h := simhost.New(t, simhost.Options{Driver: sim.Options{GPUs: 8}, Env: testenv.Options{Cgroup: version}})
		gpus := h.Driver.GPUs
		long := "0000" + gpus[3].BusID // as NVML prints it
		every := []int{0, 1, 2, 3, 4, 5, 6, 7}
		for _, tc := range []struct {
			name, value string
			want        []int
		}{
			{"a full UUID", gpus[5].UUID, []int{5}},
			{"the beginning of one UUID", gpus[2].UUID[:len("GPU-")+8], []int{2}},
			{"a UUID in upper case", strings.ToUpper(gpus[6].UUID), []int{6}},
			{"a PCI bus id with a domain of 4 digits", gpus[1].BusID, []int{1}},
			{"a PCI bus id with a domain of 8 digits", long, []int{3}},
			{"a PCI bus id in upper case", strings.ToUpper(long), []int{3}},
			{"two GPUs, order of no account", "6,1", []int{1, 6}},
			{"spaces and empty items", " 2 ,, 4,", []int{2, 4}},
			{"one GPU in five spellings", strings.Join([]string{"3", gpus[3].UUID, strings.ToLower(gpus[3].UUID[:14]), gpus[3].BusID, long}, ","), []int{3}},
			{"all in a list", "0,all", every},
			{"all before none", "all,none", every},
			{"none before all", "none,all", nil},
		} {
			t.Run(tc.name, func(t *testing.T) {
				simhost.Compare(t, h.Probe(t, simhost.Visible(tc.value)), h.Expect(tc.want))
			})
		}
		probe := h.ProbeArgs()
		for _, tc := range []struct {
			name string
			env  []any
			want []int
		}{
			{"the last of repeated variables wins", []any{"NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_VISIBLE_DEVICES=4"}, []int{4}},
			{"a last one that is none wins as well", []any{"NVIDIA_VISIBLE_DEVICES=4", "NVIDIA_VISIBLE_DEVICES=none"}, nil},
		} {
			t.Run(tc.name, func(t *testing.T) {
				// containerd's client removes repetitions: only a configuration of
				// the test's own has them.
				spec := h.Spec(t, testenv.RunOptions{Args: probe})
				process := spec["process"].(map[string]any)
				process["env"] = append([]any{"PATH=/usr/bin:/bin"}, tc.env...)
				r := h.RunSpec(t, spec)
				if r.ExitCode != 0 {
					t.Fatal(r.Error)
				}
				simhost.Compare(t, simhost.Parse(r.Output), h.Expect(tc.want))
			})
		}
		// This shim ignores it; runc 1.5 refuses it.
		t.Run("an entry without = is for runc to judge", func(t *testing.T) {
			spec := h.Spec(t, testenv.RunOptions{Args: probe})
			spec["process"].(map[string]any)["env"] = []any{"PATH=/usr/bin:/bin", "NVIDIA_VISIBLE_DEVICES=1", "NVIDIA_VISIBLE_DEVICES", "BROKEN"}
			before := h.Snapshot(t, h.State)
			for _, r := range []testenv.Result{h.RunSpec(t, spec), h.RunSpec(t, spec, "--runtime", testenv.StockRuntime)} {
				if r.ExitCode == 0 || !strings.Contains(r.Error, "OCI runtime create failed") || !strings.Contains(r.Error, "missing '='") {
					t.Errorf("got %q, want runc's own error", r.Error)
				}
			}
			before.AssertUnchanged(t)
		})
	})
}

// files is what one driver capability brings, without the version of the libraries. It
// is written down here and not taken from the product or the simulated driver, whose
// agreement is what the test is about.
type files struct {
	libraries, only64, binaries, nodes []string // only64 are libraries without a 32-bit edition
	data                               []string // paths in the container
}

var (
	utility = files{
		libraries: []string{"libnvidia-ml.so", "libnvidia-ml.so.1", "libnvidia-ml.so.V"},
		only64:    []string{"libnvidia-cfg.so", "libnvidia-cfg.so.1", "libnvidia-cfg.so.V"},
		binaries:  []string{"nvidia-debugdump", "nvidia-persistenced", "nvidia-smi"},
	}
	// computeLibraries are those that video brings as well.
	computeLibraries = files{
		libraries: []string{
			"libcuda.so", "libcuda.so.1", "libcuda.so.V",
			"libnvidia-allocator.so", "libnvidia-allocator.so.1", "libnvidia-allocator.so.V",
			"libnvidia-gpucomp.so.V",
			"libnvidia-nvvm.so", "libnvidia-nvvm.so.4", "libnvidia-nvvm.so.V",
			"libnvidia-opencl.so.1", "libnvidia-opencl.so.V",
			"libnvidia-ptxjitcompiler.so", "libnvidia-ptxjitcompiler.so.1", "libnvidia-ptxjitcompiler.so.V",
		},
		only64: []string{"libcudadebugger.so.1", "libcudadebugger.so.V", "libnvidia-pkcs11-openssl3.so.V"},
		nodes:  []string{"nvidia-uvm", "nvidia-uvm-tools"},
		data:   []string{"/etc/OpenCL/vendors/nvidia.icd"},
	}
	computePrograms = files{binaries: []string{"nvidia-cuda-mps-control", "nvidia-cuda-mps-server"}}
	video           = files{
		libraries: []string{
			"libnvcuvid.so", "libnvcuvid.so.1", "libnvcuvid.so.V",
			"libnvidia-encode.so", "libnvidia-encode.so.1", "libnvidia-encode.so.V",
			"libnvidia-opticalflow.so", "libnvidia-opticalflow.so.1", "libnvidia-opticalflow.so.V",
			"vdpau/libvdpau_nvidia.so", "vdpau/libvdpau_nvidia.so.1", "vdpau/libvdpau_nvidia.so.V",
		},
	}
	graphics = files{
		libraries: []string{
			"gbm/nvidia-drm_gbm.so",
			"libEGL_nvidia.so.0", "libEGL_nvidia.so.V",
			"libGLESv1_CM_nvidia.so.1", "libGLESv1_CM_nvidia.so.V",
			"libGLESv2_nvidia.so.2", "libGLESv2_nvidia.so.V",
			"libGLX_indirect.so.0", "libGLX_nvidia.so.0", "libGLX_nvidia.so.V",
			"libnvidia-allocator.so", "libnvidia-allocator.so.1", "libnvidia-allocator.so.V",
			"libnvidia-eglcore.so.V",
			"libnvidia-fbc.so", "libnvidia-fbc.so.1", "libnvidia-fbc.so.V",
			"libnvidia-glcore.so.V", "libnvidia-glsi.so.V", "libnvidia-glvkspirv.so.V",
			"libnvidia-gpucomp.so.V", "libnvidia-tls.so.V",
		},
		only64: []string{
			"libnvidia-egl-gbm.so.1", "libnvidia-egl-gbm.so.1.1.2",
			"libnvidia-egl-wayland.so.1", "libnvidia-egl-wayland.so.1.1.19",
			"libnvidia-rtcore.so.V", "libnvoptix.so.1", "libnvoptix.so.V",
		},
		nodes: []string{"dri/renderD128"},
		data: []string{
			"/etc/vulkan/icd.d/nvidia_icd.json", "/etc/vulkan/implicit_layer.d/nvidia_layers.json",
			"/usr/share/glvnd/egl_vendor.d/10_nvidia.json",
			"/usr/share/egl/egl_external_platform.d/10_nvidia_wayland.json",
			"/usr/share/egl/egl_external_platform.d/15_nvidia_gbm.json",
			"/usr/share/nvidia/nvoptix.bin",
			"/usr/share/X11/xorg.conf.d/nvidia-drm-outputclass.conf",
			"/usr/lib/xorg/modules/drivers/nvidia_drv.so",
			"/usr/lib/xorg/modules/extensions/libglxserver_nvidia.so",
		},
	}
	display = files{nodes: []string{"nvidia-modeset", "dri/card1"}}
	ngx     = files{only64: []string{"libnvidia-ngx.so.1", "libnvidia-ngx.so.V"}}
)

// treeOf is the sorted content of /usr/local/nvidia for these files.
func treeOf(version string, compat32 bool, parts ...files) (tree, nodes, data []string) {
	for _, p := range parts {
		for _, b := range p.binaries {
			tree = append(tree, "bin/"+b)
		}
		for _, l := range append(p.only64, p.libraries...) {
			tree = append(tree, "lib64/"+strings.ReplaceAll(l, ".V", "."+version))
		}
		if compat32 {
			for _, l := range p.libraries {
				tree = append(tree, "lib/"+strings.ReplaceAll(l, ".V", "."+version))
			}
		}
		nodes = append(nodes, p.nodes...)
		for _, d := range p.data {
			data = append(data, d)
			tree = append(tree, strings.NewReplacer("/etc/", "share/", "/usr/share/", "share/", "/usr/lib/xorg/modules/", "xorg/").Replace(d))
		}
	}
	nodes = append(nodes, "nvidia2", "nvidiactl") // GPU 0 of 3 has minor 2
	return sorted(tree), sorted(nodes), sorted(data)
}

func sorted(list []string) []string {
	slices.Sort(list)
	return slices.Compact(list)
}

// Which files, programs, nodes and data files a container gets is decided by
// NVIDIA_DRIVER_CAPABILITIES, file by file.
func TestDriverCapabilitiesDecideWhichFilesAreThere(t *testing.T) {
	h := simhost.New(t, simhost.Options{Driver: sim.Options{GPUs: 3}})
	compute := []files{computeLibraries, computePrograms}
	all := []files{utility, computeLibraries, computePrograms, video, graphics, display, ngx}
	for _, tc := range []struct {
		name, value string
		compat32    bool
		want        []files
	}{
		{"unset is compute and utility", "-", false, append([]files{utility}, compute...)},
		{"empty is compute and utility", "", false, append([]files{utility}, compute...)},
		{"utility", "utility", false, []files{utility}},
		{"compute", "compute", false, compute},
		{"video brings the libraries of compute", "video", false, []files{video, computeLibraries}},
		{"graphics", "graphics", false, []files{graphics}},
		{"display brings the libraries of graphics", "display", false, []files{graphics, display}},
		{"ngx", "ngx", false, []files{ngx}},
		{"compat32 alone is nothing", "compat32", true, nil},
		{"utility and compat32", "utility,compat32", true, []files{utility}},
		{"video and compat32", "video,compat32", true, []files{video, computeLibraries}},
		{"graphics and utility", "graphics,utility", false, []files{graphics, utility}},
		{"compute, video and utility with spaces", " compute , video,utility,", false, append([]files{utility, video}, compute...)},
		{"all", "all", true, all},
	} {
		t.Run(tc.name, func(t *testing.T) {
			env := []string{"NVIDIA_VISIBLE_DEVICES=0"}
			if tc.value != "-" {
				env = append(env, "NVIDIA_DRIVER_CAPABILITIES="+tc.value)
			}
			tree, nodes, data := treeOf(h.Driver.Version, tc.compat32, tc.want...)
			_, _, everyData := treeOf(h.Driver.Version, true, all...)
			got := look(t, h, env, everyData)
			simhost.Same(t, "/usr/local/nvidia", tree, got.tree)
			simhost.Same(t, "device nodes", nodes, got.nodes)
			simhost.Same(t, "data files", data, got.data)
			for _, s := range got.suspicious {
				t.Errorf("a file of the driver may raise privileges or is empty: %s", s)
			}
		})
	}
}

// seen is what a container has of the driver.
type seen struct{ tree, nodes, data, suspicious []string }

// look lists what a container has. Everything is read through its links, so a
// link that leads nowhere is not there.
func look(t *testing.T, h *simhost.Host, env, data []string) seen {
	t.Helper()
	script := strings.Join([]string{
		"exec 2>/dev/null",
		"echo '== tree'", "cd /usr/local/nvidia && find . ! -type d | while read f; do [ -s $f ] && echo $f; done",
		"echo '== nodes'", "cd /dev && find . -type c | grep -e nvidia -e dri",
		"echo '== data'", "for f in " + strings.Join(data, " ") + "; do [ -s $f ] && echo $f; done",
		"echo '== suspicious'", "find / -xdev -name 'nvidia-modprobe*'; find /usr/local/nvidia -perm /6022 ! -type l; find -L /usr/bin/nvidia* -perm /6022; find /usr/local/nvidia -type f -size 0",
		"true",
	}, "\n")
	out := h.MustRun(t, testenv.RunOptions{Env: env, Args: []string{"/bin/sh", "-c", script}})
	parts := simhost.Sections(out)
	clean := func(list []string) []string {
		for i := range list {
			list[i] = path.Clean(list[i])
		}
		slices.Sort(list)
		return list
	}
	return seen{clean(parts["tree"]), clean(parts["nodes"]), clean(parts["data"]), parts["suspicious"]}
}

// Nothing in a container can change a file of the driver, not as root either.
func TestT63DriverFilesAreReadOnlyWithoutSetuidOrDevices(t *testing.T) {
	h := simhost.New(t, simhost.Options{Driver: sim.Options{GPUs: 3}})
	out := h.MustRun(t, testenv.RunOptions{
		Env: []string{"NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_DRIVER_CAPABILITIES=all"},
		Args: []string{"/bin/sh", "-c", strings.Join([]string{
			"try() { if ( eval \"$1\" ) 2>/tmp/err; then echo \"worked: $1\"; elif ! grep -q 'Read-only file system' /tmp/err; then echo \"$1: $(cat /tmp/err)\"; fi; }",
			"for f in /usr/local/nvidia/bin/nvidia-smi /usr/local/nvidia/lib64/libcuda.so.1 /usr/bin/nvidia-smi /etc/vulkan/icd.d/nvidia_icd.json; do",
			"try \"echo x >>$f\"; try \"chmod 4755 $f\"; try \"chown 1 $f\"; try \"touch $f\"",
			"done",
			"try 'echo x >/usr/local/nvidia/new'; try 'rm /usr/local/nvidia/bin/nvidia-smi'; try 'rm /usr/local/nvidia/lib64/libcuda.so'; try 'mkdir /usr/local/nvidia/lib64/x'",
			"echo == mounts; cat /proc/self/mountinfo",
		}, "\n")},
	})
	tried, table, _ := strings.Cut(out, "== mounts\n")
	if tried != "" {
		t.Errorf("writing to the driver's files was not refused with \"Read-only file system\":\n%s", tried)
	}
	mounts, err := mountinfo.GetMountsFromReader(strings.NewReader(table), nil)
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, m := range mounts {
		ours := func(word string) bool { return strings.Contains(m.Mountpoint, word) }
		if !ours("nvidia") && !ours("libcuda") && !ours("/vulkan/") {
			continue
		}
		seen[m.Mountpoint] = true
		for _, option := range []string{"ro", "nosuid", "nodev"} {
			if !slices.Contains(strings.Split(m.Options, ","), option) {
				t.Errorf("mount %s is not %s: %s", m.Mountpoint, option, m.Options)
			}
		}
		if strings.Contains(m.Optional, "shared:") || strings.Contains(m.Optional, "master:") {
			t.Errorf("mount %s is not private: %s", m.Mountpoint, m.Optional)
		}
	}
	for _, point := range []string{"/usr/local/nvidia", "/usr/local/nvidia/bin/nvidia-smi"} {
		if !seen[point] {
			t.Errorf("%s is no mount", point)
		}
	}
}
