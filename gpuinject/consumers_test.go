package gpuinject

import (
	"encoding/json"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/bundle"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host/device"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/image"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/request"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simdriver/sim"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simdriver/simtest"
)

// family is a kind of image: where its C library is, and where its own libraries
// look for what others install.
type family struct {
	name  string
	libc  string            // file, below the root
	links map[string]string // name: target
	// plugins is the library directory that libgbm and libvdpau are built with, and
	// modules the X server's; "" where the image can have none.
	plugins, modules string
}

func families() []family {
	multiarch, _ := filepath.Glob("/lib/*-linux-gnu/libc.so.6")
	triple := filepath.Base(filepath.Dir(multiarch[0]))
	return []family{
		{"Debian", "usr/lib/" + triple + "/libc.so.6", map[string]string{"lib": "usr/lib"}, "/usr/lib/" + triple, "/usr/lib/xorg/modules"},
		{"Debian before the merge of /usr, distroless", "lib/" + triple + "/libc.so.6", nil, "/usr/lib/" + triple, "/usr/lib/xorg/modules"},
		{"Fedora, UBI", "usr/lib64/libc.so.6", map[string]string{"lib": "usr/lib", "lib64": "usr/lib64"}, "/usr/lib64", "/usr/lib64/xorg/modules"},
		{"openSUSE Leap", "lib64/libc.so.6", nil, "/usr/lib64", "/usr/lib64/xorg/modules"},
		{"Arch", "usr/lib/libc.so.6", map[string]string{"lib": "usr/lib", "lib64": "usr/lib"}, "/usr/lib", "/usr/lib/xorg/modules"},
		{"Alpine", "lib/ld-musl-" + muslArch(triple) + ".so.1", nil, "/usr/lib", "/usr/lib/xorg/modules"},
		{"busybox", "", nil, "", ""},
	}
}

func muslArch(triple string) string { arch, _, _ := strings.Cut(triple, "-"); return arch }

// build makes a bundle with an image of the family.
func (f family) build(t *testing.T, spec *specs.Spec) string {
	t.Helper()
	dir := t.TempDir()
	raw, err := json.Marshal(spec)
	if err != nil {
		t.Fatal(err)
	}
	writeFile(t, filepath.Join(dir, bundle.ConfigName), string(raw), 0o600)
	root := filepath.Join(dir, "rootfs")
	for _, d := range []string{"etc", "proc", "dev", "usr/bin", "usr/local"} {
		if err := os.MkdirAll(filepath.Join(root, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if f.libc != "" {
		host, _ := filepath.Glob("/lib/*-linux-gnu/libc.so.6")
		libc, err := os.ReadFile(host[0])
		if err != nil {
			t.Fatal(err)
		}
		writeFile(t, filepath.Join(root, f.libc), string(libc), 0o755)
	}
	for name, target := range f.links {
		if err := os.Symlink(target, filepath.Join(root, name)); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// look gives the content that a program of the container finds at a path: where the
// links of the image lead, in the mount that is nearest, with the links in it.
func look(t *testing.T, dir, name string) ([]byte, bool) {
	t.Helper()
	root, err := image.Open(filepath.Join(dir, "rootfs"))
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	spec := readSpec(t, dir)
	if name, err = root.Target(name); err != nil {
		t.Fatal(err)
	}
	best := -1
	for i, m := range spec.Mounts {
		if isBelow(name, m.Destination) && (best < 0 || len(m.Destination) >= len(spec.Mounts[best].Destination)) {
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

// hostsOfEveryKind are the layouts of the simulated driver, and an odd one: without
// one manifest, and with paths of the host in another.
func hostsOfEveryKind(t *testing.T) map[string]*sim.Driver {
	t.Helper()
	hosts := map[string]*sim.Driver{}
	for _, name := range append(slices.Clone(sim.Layouts), "odd") {
		layout := name
		if name == "odd" {
			layout = sim.GKE
		}
		hosts[string(name)] = simtest.New(t, sim.Options{GPUs: 1, Layout: layout})
	}
	share := filepath.Join(hosts["odd"].Root, "usr/local/nvidia/share")
	if err := os.RemoveAll(filepath.Join(share, "glvnd")); err != nil {
		t.Fatal(err)
	}
	writeFile(t, filepath.Join(share, "vulkan/icd.d/nvidia_icd.json"), `{"ICD": {"library_path": "/nix/store/x/lib/libGLX_nvidia.so.0", "api_version": "1.4.312"}}`, 0o644)
	return hosts
}

// Each file is where the consuming library looks in that image, whatever the host's
// distribution.
func TestFilesInEveryImage(t *testing.T) {
	for host, d := range hostsOfEveryKind(t) {
		cfg, err := config.Load(d.ConfigPath)
		if err != nil {
			t.Fatal(err)
		}
		cfg.Host.StateDir = filepath.Join(t.TempDir(), "state")
		t.Cleanup(func() {
			removeState(cfg.Host.StateDir)
		})
		for _, f := range families() {
			t.Run(host+" host, "+f.name+" image", func(t *testing.T) {
				dir := f.build(t, newSpec("NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_DRIVER_CAPABILITIES=all"))
				mustInject(t, cfg, dir)
				for _, name := range []string{
					"/etc/nvidia/nvidia-application-profiles-rc.d/10-container.conf", // the driver's EGL
					"/usr/share/nvidia/nvoptix.bin",                                  // OptiX
					"/usr/local/nvidia/lib64/libGLX_indirect.so.0",                   // libGLX, by name
					"/usr/local/nvidia/lib64/libnvidia-opticalflow.so",
					"/usr/local/nvidia/lib64/libnvidia-ngx.so.1",
				} {
					if _, ok := look(t, dir, name); !ok {
						t.Errorf("nothing at %s", name)
					}
				}
				for _, name := range []string{
					"/usr/share/glvnd/egl_vendor.d/10_nvidia.json",              // libglvnd
					"/usr/share/egl/egl_external_platform.d/15_nvidia_gbm.json", // libEGL_nvidia
					"/usr/share/egl/egl_external_platform.d/10_nvidia_wayland.json",
					"/etc/vulkan/icd.d/nvidia_icd.json", // the Vulkan loader
				} {
					data, _ := look(t, dir, name)
					var m struct {
						ICD struct {
							LibraryPath string `json:"library_path"`
						}
					}
					if err := json.Unmarshal(data, &m); err != nil {
						t.Errorf("%s: %q: %v", name, data, err)
						continue
					}
					if _, ok := look(t, dir, "/usr/local/nvidia/lib64/"+m.ICD.LibraryPath); !ok || strings.Contains(m.ICD.LibraryPath, "/") {
						t.Errorf("%s names %q", name, m.ICD.LibraryPath)
					}
				}
				if data, _ := look(t, dir, "/etc/OpenCL/vendors/nvidia.icd"); strings.TrimSpace(string(data)) != "libnvidia-opencl.so.1" {
					t.Errorf("OpenCL's loader reads %q", data)
				}
				if f.plugins == "" {
					return
				}
				files := []string{f.plugins + "/gbm/nvidia-drm_gbm.so", f.plugins + "/vdpau/libvdpau_nvidia.so.1"}
				if d.Layout != sim.GKE { // servers have no X server
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

// OpenCL's file is made only for those who can use it: an image without OpenCL's
// loader costs no mount.
func TestOpenCLFile(t *testing.T) {
	d := simtest.New(t, sim.Options{GPUs: 1})
	if err := os.Remove(filepath.Join(d.Root, "etc/OpenCL/vendors/nvidia.icd")); err != nil {
		t.Fatal(err)
	}
	cfg := hostConfig(t)
	cfg.Host.DriverRoot = d.Root
	f := families()[0]
	for loader, want := range map[string]bool{"": false, "usr/lib/xorg/libOpenCL.so.1": false, f.plugins[1:] + "/libOpenCL.so.1": true, "usr/local/cuda/lib64/libOpenCL.so.1": true} {
		dir := f.build(t, newSpec("NVIDIA_VISIBLE_DEVICES=0"))
		if loader != "" {
			writeFile(t, filepath.Join(dir, "rootfs", loader), "x", 0o644)
		}
		mustInject(t, cfg, dir)
		data, _ := look(t, dir, "/etc/OpenCL/vendors/nvidia.icd")
		if got := string(data) == "libnvidia-opencl.so.1\n"; got != want {
			t.Errorf("with %q: %q", loader, data)
		}
	}
}

func TestApplicationProfile(t *testing.T) {
	minors := func(list ...int) (mask uint64) {
		for _, i := range list {
			mask |= 1 << simulated.GPUs[i].Minor
		}
		return mask
	}
	for _, tc := range []struct {
		devices, caps string
		mask          uint64 // 0: no profile
	}{
		{"0", "graphics", minors(0)},
		{"3,1", "display", minors(1, 3)},
		{"all", "all", minors(0, 1, 2, 3)},
		{"none", "graphics", 0},
		{"all", "compute,utility,video,ngx,compat32", 0},
	} {
		dir := newBundle(t, newSpec("NVIDIA_VISIBLE_DEVICES="+tc.devices, "NVIDIA_DRIVER_CAPABILITIES="+tc.caps))
		mustInject(t, hostConfig(t), dir)
		data, _ := look(t, dir, profileDest)
		if tc.mask == 0 {
			if data != nil {
				t.Errorf("%s, %s: %s", tc.devices, tc.caps, data)
			}
			continue
		}
		if got := profileMask(t, data); got != tc.mask {
			t.Errorf("%s, %s: mask %x, want %x", tc.devices, tc.caps, got, tc.mask)
		}
	}
	t.Run("a minor number beyond the mask is said", func(t *testing.T) {
		for minor, want := range map[int]bool{0: true, 31: true, 32: true, 63: true, 64: false, 255: false} {
			var plan Plan
			g := grant{request: request.Request{Capabilities: []string{request.Graphics}}, gpus: []device.GPU{{Minor: minor}}}
			data := profile(g, &plan)
			if has := data != nil; has != want || has == strings.Contains(strings.Join(plan.Notes, ""), "EGL may list GPUs") {
				t.Errorf("minor %d: profile is %v, notes %q", minor, has, plan.Notes)
			}
			if want && profileMask(t, data) != 1<<minor {
				t.Errorf("minor %d: %s", minor, data)
			}
		}
	})
}

// profileMask is the mask of a profile whose one rule is for every program. The
// driver's parser takes hexadecimal numbers, which JSON has not.
func profileMask(t *testing.T, text []byte) uint64 {
	t.Helper()
	before, after, _ := strings.Cut(string(text), "0x")
	digits := strings.IndexAny(after, "]")
	if digits < 0 {
		t.Fatalf("%q has no mask", text)
	}
	var mask uint64
	for _, c := range after[:digits] {
		mask = mask<<4 | uint64(strings.IndexRune("0123456789abcdef", c))
	}
	var p struct {
		Profiles []struct {
			Name     string
			Settings []any
		}
		Rules []struct {
			Pattern []any
			Profile string
		}
	}
	if err := json.Unmarshal([]byte(before+"0"+after[digits:]), &p); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	if len(p.Profiles) != 1 || len(p.Rules) != 1 || p.Rules[0].Pattern == nil || len(p.Rules[0].Pattern) != 0 ||
		p.Rules[0].Profile != p.Profiles[0].Name || p.Profiles[0].Settings[0] != "EGLVisibleDGPUDevices" {
		t.Errorf("%s", text)
	}
	return mask
}

func TestLinksByPath(t *testing.T) {
	dir := newBundle(t, newSpec("NVIDIA_VISIBLE_DEVICES=2", "NVIDIA_DRIVER_CAPABILITIES=graphics"))
	mustInject(t, hostConfig(t), dir)
	spec := readSpec(t, dir)
	i := slices.IndexFunc(spec.Mounts, func(m specs.Mount) bool { return m.Destination == byPathDest })
	if i < 0 {
		t.Fatal("no mount at " + byPathDest)
	}
	entries, err := os.ReadDir(spec.Mounts[i].Source)
	if err != nil {
		t.Fatal(err)
	}
	bus := simulated.GPUs[2].BusID
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
		target, err := os.Readlink(filepath.Join(spec.Mounts[i].Source, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		node := path.Join(byPathDest, target)
		if !slices.ContainsFunc(spec.Linux.Devices, func(d specs.LinuxDevice) bool { return d.Path == node }) {
			t.Errorf("%s leads to %s, which is no node of the container", e.Name(), node)
		}
	}
	if want := []string{"pci-" + bus + "-card", "pci-" + bus + "-render"}; !slices.Equal(names, want) {
		t.Errorf("got %v, want %v", names, want)
	}
}

// A /dev/dri of the container's own, as in `--volume /dev/dri:/dev/dri`, has links of
// its own.
func TestLinksByPathAndVolume(t *testing.T) {
	spec := newSpec("NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_DRIVER_CAPABILITIES=graphics")
	spec.Mounts = append(spec.Mounts, volumeMount("/dev/dri"))
	dir := newBundle(t, spec)
	inj := mustInject(t, hostConfig(t), dir)
	if slices.Contains(destinations(readSpec(t, dir).Mounts), byPathDest) || !strings.Contains(strings.Join(inj.Plan.Notes, ""), "not mounted at "+byPathDest) {
		t.Errorf("notes %q", inj.Plan.Notes)
	}
}

// A MIG device is in the mask by its GPU; DRM nodes are for those with graphics alone.
func TestApplicationProfileOfMIG(t *testing.T) {
	h := newMIGHost(t)
	for _, gfx := range []bool{false, true} {
		dir := newBundle(t, newSpec("NVIDIA_VISIBLE_DEVICES="+h.MIG[0].UUID, "NVIDIA_DRIVER_CAPABILITIES=graphics"))
		_, err := injectWith(t, h.cfg, dir, factsFrom(func() (device.Facts, error) {
			facts := factsOf(h.Driver)
			for i := range facts.GPUs[1].Instances {
				if gfx {
					facts.GPUs[1].Instances[i].Name += "+gfx"
				}
			}
			return facts, nil
		}))
		if err != nil {
			t.Fatal(err)
		}
		spec := readSpec(t, dir)
		data, _ := look(t, dir, profileDest)
		if got, want := profileMask(t, data), uint64(1)<<h.GPUs[1].Minor; got != want {
			t.Errorf("mask %x, want %x", got, want)
		}
		if links := slices.Contains(destinations(spec.Mounts), byPathDest); links != gfx {
			t.Errorf("graphics of the MIG device is %v, links by path are %v", gfx, links)
		}
		if err := os.RemoveAll(h.cfg.Host.StateDir + "/nvml.json"); err != nil {
			t.Fatal(err)
		}
	}
}

func TestDataFileDecisions(t *testing.T) {
	hosts := hostsOfEveryKind(t)
	for _, tc := range []struct {
		name, host, caps string
		image            string // a file of the image
		want             string
	}{
		{"made", "odd", "graphics", "", "/usr/share/glvnd/egl_vendor.d/10_nvidia.json: made"},
		{"made in place of one that names a path", "odd", "graphics", "", "/etc/vulkan/icd.d/nvidia_icd.json: made"},
		{"over the image's", "debian", "graphics", "usr/share/vulkan/icd.d/nvidia_icd.json", "/usr/share/vulkan/icd.d/nvidia_icd.json: covered"},
		{"of no use", "without OpenCL", "compute", "", "/etc/OpenCL/vendors/nvidia.icd: not given"},
		{"the profile", "debian", "display", "", "EGL: lists the container's GPUs only"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			d := hosts[tc.host]
			if d == nil {
				d = hosts["rhel"]
				if err := os.Remove(filepath.Join(d.Root, "etc/OpenCL/vendors/nvidia.icd")); err != nil {
					t.Fatal(err)
				}
			}
			cfg := hostConfig(t)
			cfg.Host.DriverRoot = d.Root
			dir := families()[0].build(t, newSpec())
			if tc.image != "" {
				writeFile(t, filepath.Join(dir, "rootfs", tc.image), "{}", 0o644)
			}
			c := mustExamine(t, cfg, newSpec("NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_DRIVER_CAPABILITIES="+tc.caps))
			plan, err := resolveIn(t, c, filepath.Join(dir, "rootfs"), noProbe)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, x := range plan.Decisions {
				got = append(got, x.Subject+": "+x.Decision)
			}
			if !slices.Contains(got, tc.want) {
				t.Errorf("no %q among %q", tc.want, got)
			}
			for _, m := range plan.Mounts {
				if !strings.HasPrefix(m.Source, "/") && !strings.HasPrefix(m.Source, "<bundle>/") {
					t.Errorf("mount from %q", m.Source)
				}
			}
		})
	}
}
