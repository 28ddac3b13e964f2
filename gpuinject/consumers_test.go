package gpuinject

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/bundle"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host/device"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/image"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/place"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/request"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/verdict"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simdriver/sim"
)

// family is a kind of image: where its C library is, and where its libraries look for other files.
type family struct {
	name  string
	libc  string            // file, below the root
	links map[string]string // name: target
	// plugins is the library directory that libgbm and libvdpau are built with, modules the X
	// server's module directory. Both are "" if the image can have none.
	plugins, modules string
}

func families() []family {
	triple := filepath.Base(filepath.Dir(hostLibC()))
	machine, _, _ := strings.Cut(triple, "-")
	return []family{
		{"Debian", "usr/lib/" + triple + "/libc.so.6", map[string]string{"lib": "usr/lib"}, "/usr/lib/" + triple, "/usr/lib/xorg/modules"},
		{"Debian before the merge of /usr, distroless", "lib/" + triple + "/libc.so.6", nil, "/usr/lib/" + triple, "/usr/lib/xorg/modules"},
		{"Fedora, UBI", "usr/lib64/libc.so.6", map[string]string{"lib": "usr/lib", "lib64": "usr/lib64"}, "/usr/lib64", "/usr/lib64/xorg/modules"},
		{"openSUSE Leap", "lib64/libc.so.6", nil, "/usr/lib64", "/usr/lib64/xorg/modules"},
		{"Arch", "usr/lib/libc.so.6", map[string]string{"lib": "usr/lib", "lib64": "usr/lib"}, "/usr/lib", "/usr/lib/xorg/modules"},
		{"Alpine", "lib/ld-musl-" + machine + ".so.1", nil, "/usr/lib", "/usr/lib/xorg/modules"},
		{"busybox", "", nil, "", ""},
	}
}

// build makes a bundle with an image of the family.
func (f family) build(t testing.TB, spec any) string {
	t.Helper()
	dir := t.TempDir()
	raw, err := json.Marshal(spec)
	check(t, err)
	writeFile(t, filepath.Join(dir, bundle.ConfigName), string(raw), 0o600)
	f.image(t, filepath.Join(dir, "rootfs"))
	return dir
}

// image makes the root file system.
func (f family) image(t testing.TB, root string) {
	t.Helper()
	for _, d := range []string{"etc", "proc", "dev", "usr/bin", "usr/local"} {
		mkdir(t, filepath.Join(root, d))
	}
	if f.libc != "" {
		writeFile(t, filepath.Join(root, f.libc), string(readFile(t, "/", hostLibC())), 0o755)
	}
	for name, target := range f.links {
		symlink(t, target, filepath.Join(root, name))
	}
}

// hostLibC returns the path of this machine's C library.
func hostLibC() string {
	found, _ := filepath.Glob("/lib/*-linux-gnu/libc.so.6")
	return found[0]
}

// look returns the content that a program in the container finds at a path, following the links of
// the image and of the innermost mount.
func look(t *testing.T, dir, name string) ([]byte, bool) {
	t.Helper()
	root, err := image.Open(filepath.Join(dir, "rootfs"))
	check(t, err)
	defer root.Close()
	spec := readSpec(t, dir)
	if name, err = root.Target(name); err != nil {
		t.Fatal(err)
	}
	best := -1
	for i, m := range spec.Mounts {
		if place.IsBelow(name, m.Destination) && (best < 0 || len(m.Destination) >= len(spec.Mounts[best].Destination)) {
			best = i
		}
	}
	if best < 0 || !slices.Contains(spec.Mounts[best].Options, "ro") {
		return nil, false
	}
	m := spec.Mounts[best]
	data, err := os.ReadFile(path.Join(m.Source, strings.TrimPrefix(name, m.Destination)))
	return data, err == nil && len(data) > 0
}

// hostsOfEveryKind returns a host for each layout of the simulated driver, and an odd one that
// lacks one manifest and has a path of the host in another.
func hostsOfEveryKind(t *testing.T) map[string]*testHost {
	t.Helper()
	hosts := map[string]*testHost{}
	for _, layout := range sim.Layouts {
		hosts[string(layout)] = newHost(t, sim.Options{GPUs: 1, Layout: layout})
	}
	hosts["odd"] = newHost(t, sim.Options{GPUs: 1, Layout: sim.GKE})
	share := filepath.Join(hosts["odd"].Root, "usr/local/nvidia/share")
	check(t, os.RemoveAll(filepath.Join(share, "glvnd")))
	writeFile(t, filepath.Join(share, "vulkan/icd.d/nvidia_icd.json"), `{"ICD": {"library_path": "/nix/store/x/lib/libGLX_nvidia.so.0", "api_version": "1.4.312"}}`, 0o644)
	return hosts
}

// Each file is where the consuming library looks in that image, whatever the host's
// distribution.
func TestT69FilesInEveryImage(t *testing.T) {
	for host, h := range hostsOfEveryKind(t) {
		for _, f := range families() {
			t.Run(host+" host, "+f.name+" image", func(t *testing.T) {
				dir := f.build(t, newSpec("NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_DRIVER_CAPABILITIES=all"))
				mustInject(t, h.cfg, dir)
				files := []string{
					"/etc/nvidia/nvidia-application-profiles-rc.d/10-container.conf", // the driver's EGL
					"/usr/share/nvidia/nvoptix.bin",                                  // OptiX
					"/usr/local/nvidia/lib64/libGLX_indirect.so.0",                   // libGLX, by name
					"/usr/local/nvidia/lib64/libnvidia-opticalflow.so",
					"/usr/local/nvidia/lib64/libnvidia-ngx.so.1",
					"/usr/share/glvnd/egl_vendor.d/10_nvidia.json", // libglvnd
					"/usr/share/egl/egl_external_platform.d/15_nvidia_gbm.json",
					"/usr/share/egl/egl_external_platform.d/10_nvidia_wayland.json",
					"/etc/vulkan/icd.d/nvidia_icd.json",
					"/etc/OpenCL/vendors/nvidia.icd",
				}
				if f.plugins != "" {
					files = append(files, f.plugins+"/gbm/nvidia-drm_gbm.so", f.plugins+"/vdpau/libvdpau_nvidia.so.1")
				}
				if f.plugins != "" && h.Layout != sim.GKE { // servers have no X server
					files = append(files, f.modules+"/drivers/nvidia_drv.so", f.modules+"/extensions/libglxserver_nvidia.so")
				}
				for _, name := range files {
					if _, ok := look(t, dir, name); !ok {
						t.Errorf("nothing at %s; there is %v", name, given(t, dir))
					}
				}
			})
		}
	}
}

// What EGL lists, and what a program that looks up GPUs by bus id finds.
func TestProgramsThatDraw(t *testing.T) {
	mask := regexp.MustCompile("0x[0-9a-f]+")
	show := func(p Plan) string {
		var list []string
		for _, f := range p.Changes.BundleFiles {
			if f.Path == profileName {
				list = append(list, mask.FindString(string(f.Data)))
			}
		}
		if slices.ContainsFunc(p.Mounts, func(m place.Mount) bool { return m.Destination == byPathDest }) {
			for _, name := range slices.Sorted(maps.Keys(p.Changes.ByPath)) {
				node := path.Join(byPathDest, p.Changes.ByPath[name])
				if !slices.ContainsFunc(p.Devices, func(d PlanDevice) bool { return d.Path == node }) {
					t.Errorf("%s leads to %s, which is no node of the container", name, node)
				}
				list = append(list, name)
			}
		}
		if strings.Contains(strings.Join(p.Notes, "\n"), "not mounted at "+byPathDest) {
			list = append(list, "noted")
		}
		return strings.Join(list, " ")
	}
	// want returns what a container with these GPUs should get.
	want := func(gpus ...int) string {
		bits, links := 0, []string{}
		for _, i := range gpus {
			bits |= 1 << simulated.GPUs[i].Minor
			links = append(links, "pci-"+simulated.GPUs[i].BusID+"-card", "pci-"+simulated.GPUs[i].BusID+"-render")
		}
		return fmt.Sprintf("%#x %s", bits, strings.Join(links, " "))
	}
	h := newMIGHost(t)
	gfx := *h
	gfx.cfg = configOf(t, h.Driver)
	gfx.change = func(f *device.Facts) {
		for i := range f.GPUs[1].Instances {
			f.GPUs[1].Instances[i].Name += "+gfx"
		}
	}
	ofMIG := fmt.Sprintf("%#x", 1<<h.GPUs[1].Minor)
	bus := h.GPUs[1].BusID
	table{show: show, rows: []row{
		{name: "a GPU", env: append(devices("0"), caps("display")...), want: want(0)},
		{name: "two", env: append(devices("3,1"), caps("display")...), want: want(1, 3)},
		{name: "all", env: append(devices("all"), caps("all")...), want: want(0, 1, 2, 3)},
		{name: "none", env: append(devices("none"), caps("graphics")...)},
		{name: "nothing that draws", env: append(devices("all"), caps("compute,utility,video,ngx,compat32")...)},
		{name: "the host's /dev/dri", env: append(devices("2"), caps("graphics")...), spec: mounting(hostConfig(t).Host.DevRoot+"/dev/dri", "/dev/dri"),
			want: fmt.Sprintf("%#x noted", 1<<simulated.GPUs[2].Minor)},
		{name: "a /dev/dri of the container's own", env: append(devices("2"), caps("graphics")...), spec: mounting("/srv", "/dev/dri"), kind: verdict.KindInvalid,
			want: "refused: the container mounts a volume at \"/dev/dri\", where the device node /dev/dri/render"},
		{name: "a MIG device", host: h, env: append(devices(h.MIG[0].UUID), caps("graphics")...), want: ofMIG},
		{name: "a MIG device with graphics", host: &gfx, env: append(devices(h.MIG[0].UUID), caps("graphics")...),
			want: ofMIG + " pci-" + bus + "-render"},
		{name: "a MIG device with display", host: &gfx, env: append(devices(h.MIG[0].UUID), caps("display")...),
			want: ofMIG + " pci-" + bus + "-card pci-" + bus + "-render"},
	}}.run(t)
}

func TestDataFileDecisions(t *testing.T) {
	hosts := hostsOfEveryKind(t)
	const openCL = "etc/OpenCL/vendors/nvidia.icd"
	without := hosts["rhel"]
	check(t, os.Remove(filepath.Join(without.Root, openCL)))
	f := families()[0]
	with := func(names ...string) func(root string) {
		return func(root string) {
			f.image(t, root)
			for _, name := range names {
				writeFile(t, filepath.Join(root, name), "{}", 0o644)
			}
		}
	}
	show := func(p Plan) string {
		var list []string
		for _, d := range p.Decisions {
			if strings.HasPrefix(d.Subject, "/") && d.Subject != request.DeviceListDir && d.Decision != "masked" || d.Subject == "EGL" {
				list = append(list, d.Subject+": "+d.Decision)
			}
		}
		for _, m := range p.Mounts {
			if !strings.HasPrefix(m.Source, "/") && !strings.HasPrefix(m.Source, "<bundle>/") {
				t.Errorf("mount from %q", m.Source)
			}
		}
		return strings.Join(list, ", ")
	}
	const vulkan, egl = "usr/share/vulkan/icd.d/nvidia_icd.json", "EGL: lists the container's GPUs only"
	const ofNoUse, made = "/" + openCL + ": not given", "/" + openCL + ": made"
	table{env: devices("0"), show: show, rows: []row{
		{name: "made, and made in place of one that names a path", host: hosts["odd"], env: caps("graphics"), image: with(),
			want: "/usr/share/glvnd/egl_vendor.d/10_nvidia.json: made, /etc/vulkan/icd.d/nvidia_icd.json: made, " + egl},
		{name: "over the image's", host: hosts["debian"], env: caps("graphics"), image: with(vulkan), want: "/" + vulkan + ": covered, " + egl},
		{name: "the profile", host: hosts["debian"], env: caps("display"), image: with(), want: egl},
		{name: "no loader of OpenCL", host: without, env: caps("compute"), image: with(), want: ofNoUse},
		{name: "a file of that name elsewhere", host: without, env: caps("compute"), image: with("usr/lib/xorg/libOpenCL.so.1"), want: ofNoUse},
		{name: "a loader of OpenCL", host: without, env: caps("compute"), image: with(f.plugins + "/libOpenCL.so.1"), want: made},
		{name: "a loader of OpenCL in CUDA", host: without, env: caps("compute"), image: with("usr/local/cuda/lib64/libOpenCL.so.1"), want: made},
	}}.run(t)
}

// Slim images have no libraries of X11, and nothing says so when the driver's GLX is loaded.
func TestWhatGraphicsLacksIsNoted(t *testing.T) {
	x11, xext := path.Join(path.Dir("/"+families()[0].libc), "libX11.so.6"), path.Join(path.Dir("/"+families()[0].libc), "libXext.so.6")
	show := func(p Plan) string {
		var list []string
		for _, n := range p.Notes {
			for _, word := range []string{"libX11.so.6, libXext.so.6, not in", "need libXext.so.6, not in", "/dev/nvidia-modeset without the capability display"} {
				if strings.Contains(n, word) {
					list = append(list, word)
				}
			}
		}
		return strings.Join(list, "; ")
	}
	const both, one, node = "libX11.so.6, libXext.so.6, not in", "need libXext.so.6, not in", "/dev/nvidia-modeset without the capability display"
	table{env: devices("0"), show: show, rows: []row{
		{name: "a slim image", env: caps("graphics"), image: in(t), want: both + "; " + node},
		{name: "with display", env: caps("display"), image: in(t), want: both},
		{name: "one library", env: caps("display"), image: in(t, file("", x11)), want: one},
		{name: "both", env: caps("graphics,display"), image: in(t, file("", x11), file("", xext))},
		{name: "compute", env: caps("compute"), image: in(t)},
		{name: "no C library", env: caps("graphics")},
	}}.run(t)
}
