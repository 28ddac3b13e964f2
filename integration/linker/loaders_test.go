package linker

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/images"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simdriver/sim"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simhost"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testenv"
)

// What each real loader prints about the simulated driver when it has found it: the library, and
// the function that it called.
var foundLines = map[string]string{
	"vulkan": "libGLX_nvidia V vulkan driver",
	"egl":    "libEGL_nvidia V EGL vendor",
	"opencl": "libnvidia-opencl V OpenCL platform",
	"vdpau":  "libvdpau_nvidia V VDPAU driver",
	"gbm":    "libnvidia-allocator V GBM backend",
}

// runLoaders runs the loaders of the image "loaders" and returns how often each found the
// driver.
func runLoaders(t *testing.T, h *simhost.Host, o testenv.RunOptions) map[string]int {
	t.Helper()
	o.Env = append(o.Env, "NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_SIM_TRACE=1")
	o.Args = []string{"/bin/sh", "-c", "/test/loaders 2>&1"}
	out := h.MustRun(t, o)
	found := map[string]int{}
	for loader, line := range foundLines {
		found[loader] = strings.Count(out, strings.ReplaceAll(line, " V ", " "+h.Driver.Version+" ")+"\n")
		if !strings.Contains(out, "\n"+loader+" ") && !strings.HasPrefix(out, loader+" ") {
			t.Errorf("the loader %s was not asked", loader)
		}
	}
	if t.Failed() {
		t.Logf("output:\n%s", out)
	}
	return found
}

// expectOnce fails unless each of these loaders found the driver once, and no other.
func expectOnce(t *testing.T, found map[string]int, loaders ...string) {
	t.Helper()
	for loader := range foundLines {
		want := 0
		if slices.Contains(loaders, loader) {
			want = 1
		}
		if found[loader] != want {
			t.Errorf("%s found the driver %d times, want %d", loader, found[loader], want)
		}
	}
}

// manifestsOf are the driver's manifests on a host, as paths in its driver root.
func manifestsOf(d *sim.Driver) []string {
	var list []string
	for _, name := range d.Installed {
		info, err := os.Lstat(filepath.Join(d.Root, name))
		if err == nil && info.Mode().IsRegular() && (strings.HasSuffix(name, ".json") || strings.HasSuffix(name, ".icd")) {
			list = append(list, name)
		}
	}
	return list
}

// The loaders that programs use, as Debian builds them, with the driver of each
// kind of host.
func TestT69RealLoadersFindTheDriverOfEveryHost(t *testing.T) {
	every := []string{"vulkan", "egl", "opencl", "vdpau", "gbm"}
	for _, layout := range sim.Layouts {
		t.Run(string(layout), func(t *testing.T) {
			h := simhost.New(t, simhost.Options{Driver: sim.Options{Layout: layout, GPUs: 1}})
			image := h.Load(t, "loaders")
			all := testenv.RunOptions{Image: image, Env: []string{"NVIDIA_DRIVER_CAPABILITIES=all"}}
			t.Run("as it is", func(t *testing.T) { expectOnce(t, runLoaders(t, h, all), every...) })
			if layout != sim.Debian {
				return // how the shim handles manifests does not depend on the layout
			}
			manifests := manifestsOf(h.Driver)
			if len(manifests) < 3 {
				t.Fatalf("the host has the manifests %v", manifests)
			}
			t.Run("with manifests that name the libraries by the host's paths", func(t *testing.T) {
				for _, name := range manifests {
					file := filepath.Join(h.Driver.Root, name)
					data, err := os.ReadFile(file)
					if err != nil {
						t.Fatal(err)
					}
					text := strings.ReplaceAll(string(data), "lib", "/nix/store/abc-nvidia/lib/lib")
					text = strings.ReplaceAll(text, "/nix/store/abc-nvidia/lib/library", "library")
					if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
						t.Fatal(err)
					}
				}
				expectOnce(t, runLoaders(t, h, all), every...)
			})
			t.Run("without any manifest", func(t *testing.T) {
				for _, name := range manifests {
					if err := os.Remove(filepath.Join(h.Driver.Root, name)); err != nil {
						t.Fatal(err)
					}
				}
				expectOnce(t, runLoaders(t, h, all), every...)
			})
		})
	}
}

func TestRealLoadersFindWhatTheCapabilitiesBring(t *testing.T) {
	h := simhost.New(t, simhost.Options{Driver: sim.Options{GPUs: 1}})
	image := h.Load(t, "loaders")
	for _, tc := range []struct {
		caps string
		want []string
	}{
		{"utility", nil},
		{"compute", []string{"opencl"}},
		{"video", []string{"opencl", "vdpau"}},
		{"graphics", []string{"vulkan", "egl", "gbm"}},
		{"display", []string{"vulkan", "egl", "gbm"}},
	} {
		t.Run(tc.caps, func(t *testing.T) {
			expectOnce(t, runLoaders(t, h, testenv.RunOptions{Image: image, Env: []string{"NVIDIA_DRIVER_CAPABILITIES=" + tc.caps}}), tc.want...)
		})
	}
}

// Of two manifests the Vulkan loader makes two drivers, each of which lists every
// GPU, so an image's own copy has ours over it.
func TestAnImageWithManifestsOfItsOwnListsNoGPUTwice(t *testing.T) {
	h := simhost.New(t, simhost.Options{Driver: sim.Options{GPUs: 1}})
	own := `{"file_format_version": "1.0.0", "ICD": {"library_path": "libGLX_nvidia.so.0", "api_version": "1.1.99"}}`
	vendor := `{"file_format_version": "1.0.0", "ICD": {"library_path": "libEGL_nvidia.so.0"}}`
	usr, local := images.Text("usr/share/vulkan/icd.d/nvidia_icd.x86_64.json", 0o644, own), images.Text("usr/local/share/vulkan/icd.d/nvidia_icd.json", 0o644, own)
	if runtime.GOARCH == "arm64" {
		usr = images.Text("usr/share/vulkan/icd.d/nvidia_icd.aarch64.json", 0o644, own)
	}
	for _, tc := range []struct {
		name   string
		files  []images.File
		vulkan int
		noted  bool
	}{
		{"where ours goes", []images.File{images.Text("etc/vulkan/icd.d/nvidia_icd.json", 0o644, own)}, 1, false},
		{"in the data directory, by another name", []images.File{usr}, 1, false},
		{"in the local data directory", []images.File{local}, 1, false},
		{"for EGL", []images.File{images.Text("etc/glvnd/egl_vendor.d/10_nvidia.json", 0o644, vendor)}, 1, false},
		// The image itself lists it twice, which the shim notes.
		{"two of them", []images.File{usr, local}, 2, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tree := h.Tree(t, "loaders", tc.files...)
			o := testenv.RunOptions{RootfsDir: tree, Env: []string{"NVIDIA_DRIVER_CAPABILITIES=graphics"}}
			found := runLoaders(t, h, o)
			if found["vulkan"] != tc.vulkan || found["egl"] != 1 {
				t.Errorf("found the driver %v times", found)
			}
			notes := strings.Join(h.Record(t, start(t, h, o)).Notes, "\n")
			if noted := strings.Contains(notes, "listed more than once"); noted != tc.noted {
				t.Errorf("notes %q", notes)
			}
		})
	}
}

// A 32-bit program in an image with a 32-bit C library.
func TestA32BitProgramLoads32BitLibraries(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Log("the driver has 32-bit libraries on x86-64 only: nothing to test on " + runtime.GOARCH)
		return
	}
	testenv.NeedPrograms32(t)
	for _, layout := range []sim.Layout{sim.Debian, sim.RHEL} {
		t.Run(string(layout), func(t *testing.T) {
			h := simhost.New(t, simhost.Options{Driver: sim.Options{Layout: layout, GPUs: 1}})
			image := h.Load(t, "loaders")
			run := func(caps string) string {
				return h.MustRun(t, testenv.RunOptions{
					Image: image, Env: []string{"NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_DRIVER_CAPABILITIES=" + caps},
					Args: []string{"/bin/sh", "-c", "/test/dlopen32 libcuda.so.1 libGLX_nvidia.so.0 libGLX_indirect.so.0 /usr/lib32/vdpau/libvdpau_nvidia.so.1 /usr/lib32/gbm/nvidia-drm_gbm.so; /test/dlopen libcuda.so.1; ldconfig -p | grep libcuda.so.1"},
				})
			}
			simhost.Want(t, run("all"),
				"libcuda.so.1 OK /usr/local/nvidia/lib/libcuda.so.1\n",
				"libGLX_nvidia.so.0 OK /usr/local/nvidia/lib/libGLX_nvidia.so.0\n",
				"libGLX_indirect.so.0 OK /usr/local/nvidia/lib/libGLX_nvidia.so.0\n", // the same file
				"/usr/lib32/vdpau/libvdpau_nvidia.so.1 OK", "/usr/lib32/gbm/nvidia-drm_gbm.so OK",
				"libcuda.so.1 OK /usr/local/nvidia/lib64/libcuda.so.1\n",
				"libcuda.so.1 (libc6,x86-64) => /usr/local/nvidia/lib64/libcuda.so.1\n", "libcuda.so.1 (libc6) => /usr/local/nvidia/lib/libcuda.so.1\n")
			// An image of 32-bit programs alone.
			tree := h.Tree(t, "loaders")
			if err := os.Remove(filepath.Join(tree, simhost.Multiarch, "libc.so.6")); err != nil {
				t.Fatal(err)
			}
			simhost.Want(t, h.MustRun(t, testenv.RunOptions{
				RootfsDir: tree, Env: []string{"NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_DRIVER_CAPABILITIES=all"},
				Args: []string{"/test/dlopen32", "libcuda.so.1", "/usr/lib32/vdpau/libvdpau_nvidia.so.1"},
			}), "libcuda.so.1 OK /usr/local/nvidia/lib/libcuda.so.1\n", "/usr/lib32/vdpau/libvdpau_nvidia.so.1 OK")
			// Without the capability a 32-bit program finds no driver, and no 64-bit one either.
			if out := run("compute,graphics,video"); strings.Contains(out, "nvidia/lib/") || !strings.Contains(out, "libcuda.so.1 OK /usr/local/nvidia/lib64/") {
				t.Errorf("without compat32:\n%s", out)
			}
		})
	}
}

// A program that searches GPUs by bus id finds the container's own, and EGL is told
// which they are. Neither needs anything of the image.
func TestAContainerThatDrawsSeesItsOwnGPUsOnly(t *testing.T) {
	testenv.EachCgroup(t, func(t *testing.T, version int) {
		h := simhost.New(t, simhost.Options{Driver: sim.Options{GPUs: 4}, Env: testenv.Options{Cgroup: version}})
		script := []string{"/bin/sh", "-c", "for l in /dev/dri/by-path/*; do echo $l $(readlink $l) $(/test/opendev $l | cut -d' ' -f2); done; cat /etc/nvidia/nvidia-application-profiles-rc.d/*; touch /dev/dri/by-path/x 2>&1"}
		for _, tc := range []struct {
			name string
			o    testenv.RunOptions
		}{
			{"", testenv.RunOptions{}},
			{"read-only root", testenv.RunOptions{ReadOnly: true}},
			{"user namespace", testenv.RunOptions{Extra: simhost.UserNamespace}},
		} {
			t.Run("GPUs 1 and 3 "+tc.name, func(t *testing.T) {
				o := tc.o
				o.Image, o.Env, o.Args = h.Image, []string{"NVIDIA_VISIBLE_DEVICES=1,3", "NVIDIA_DRIVER_CAPABILITIES=display"}, script
				result := h.Run(t, o)
				open := "ENXIO"
				if strings.HasPrefix(tc.name, "user") {
					// The nodes belong to groups that the namespace does not have.
					open = "EACCES"
				}
				var want string
				for _, i := range []int{1, 3} {
					want += fmt.Sprintf("/dev/dri/by-path/pci-%s-card ../card%d %s\n", h.Driver.GPUs[i].BusID, i+1, open)
					want += fmt.Sprintf("/dev/dri/by-path/pci-%s-render ../renderD%d %s\n", h.Driver.GPUs[i].BusID, 128+i, open)
				}
				mask := 1<<h.Minors[1] | 1<<h.Minors[3]
				profile := fmt.Sprintf(`"settings": ["EGLVisibleDGPUDevices", 0x%x]`, mask)
				if !strings.HasPrefix(result.Output, want) || !strings.Contains(result.Output, profile) {
					t.Errorf("got %q, want %q and %q; %s", result.Output, want, profile, result.Error)
				}
				if !strings.Contains(result.Output, "Read-only file system") {
					t.Errorf("/dev/dri/by-path can be written to: %s", result.Output)
				}
			})
		}
		t.Run("no other container has them", func(t *testing.T) {
			out := h.Run(t, testenv.RunOptions{Image: h.Image, Env: []string{"NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=compute,utility,video"}, Args: []string{"/bin/sh", "-c", "ls /dev/dri /etc/nvidia 2>/dev/null"}})
			if out.Output != "" {
				t.Errorf("got %q", out.Output)
			}
		})
	})
}
