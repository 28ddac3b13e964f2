package gpuinject

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/bundle"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/image"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/place"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/request"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/verdict"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/view"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simdriver/sim"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testtree"
)

func TestInject(t *testing.T) {
	spec := newSpec("PATH=/bin", "NVIDIA_VISIBLE_DEVICES=2", "NVIDIA_DRIVER_CAPABILITIES=compute,utility")
	dir := newBundle(t, spec)
	plan := mustInject(t, hostConfig(t), dir)
	got := readSpec(t, dir)

	var nodes []string
	for _, d := range got.Linux.Devices {
		nodes = append(nodes, d.Path)
		if d.Type != "c" || d.FileMode == nil || d.UID == nil || d.GID == nil {
			t.Errorf("device %+v has no type, mode or owner", d)
		}
	}
	want := []string{"/dev/nvidiactl", fmt.Sprintf("/dev/nvidia%d", simulated.GPUs[2].Minor), "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"}
	if !slices.Equal(nodes, want) {
		t.Errorf("nodes %v, want %v", nodes, want)
	}
	rules := got.Linux.Resources.Devices
	if len(rules) != 1+len(want) || !reflect.DeepEqual(rules[0], spec.Linux.Resources.Devices[0]) {
		t.Errorf("rules %v, want the container's own and then %d", rules, len(want))
	}
	if !slices.Equal(got.Process.Env, spec.Process.Env) {
		t.Errorf("the environment became %v", got.Process.Env)
	}
	if !reflect.DeepEqual(got.Mounts[:len(spec.Mounts)], spec.Mounts) {
		t.Errorf("the container's own mounts became %v", got.Mounts)
	}
	if dest := destinations(got.Mounts[len(spec.Mounts):]); !slices.Equal(dest, []string{view.Dir}) {
		t.Errorf("mounts %v, want %s only", dest, view.Dir)
	}
	dest := given(t, dir)
	if !slices.Contains(dest, "/usr/bin/nvidia-smi") {
		t.Errorf("no nvidia-smi in %v", dest)
	}
	for _, name := range []string{"libcuda.so.1", "libcuda.so", "libnvidia-ml.so.1"} {
		if !slices.ContainsFunc(dest, func(d string) bool { return strings.HasPrefix(d, "/usr/lib") && filepath.Base(d) == name }) {
			t.Errorf("%s is not in the library directory: %v", name, dest)
		}
	}
	if plan.Linker.Cache != "written" || plan.Linker.LibC != "glibc" {
		t.Errorf("linker %+v", plan.Linker)
	}
	text, err := json.Marshal(plan)
	if written := readFile(t, dir, RecordName); err != nil || string(written) != string(text)+"\n" {
		t.Errorf("the record says %s\nthe plan %s (%v)", written, text, err)
	}
	if info, err := os.Stat(filepath.Join(dir, RecordName)); err != nil || info.Mode() != 0o600 {
		t.Errorf("the record has mode %v, %v", info.Mode(), err)
	}
}

func destinations(mounts []specs.Mount) []string {
	var out []string
	for _, m := range mounts {
		out = append(out, m.Destination)
	}
	return out
}

// Invariant I6 holds for every request.
func TestT34DeviceRules(t *testing.T) {
	for _, devices := range []string{"all", "none", "0", "3,1", "all,none", simulated.GPUs[1].UUID, simulated.GPUs[3].BusID} {
		dir := newBundle(t, newSpec("NVIDIA_VISIBLE_DEVICES="+devices, "NVIDIA_DRIVER_CAPABILITIES=all"))
		mustInject(t, hostConfig(t), dir)
		spec := readSpec(t, dir)
		for _, r := range spec.Linux.Resources.Devices[1:] {
			if !r.Allow || r.Type != "c" || r.Major == nil || r.Minor == nil || *r.Major < 0 || *r.Minor < 0 || r.Access != "rw" {
				t.Errorf("NVIDIA_VISIBLE_DEVICES=%s: rule %+v", devices, r)
			}
		}
		if len(spec.Linux.Resources.Devices)-1 != len(spec.Linux.Devices) {
			t.Errorf("NVIDIA_VISIBLE_DEVICES=%s: %d rules for %d nodes", devices, len(spec.Linux.Resources.Devices)-1, len(spec.Linux.Devices))
		}
	}
}

// Invariant I2: no mount source is in the image. A container's links still work when it is
// restarted after a driver upgrade, because they do not contain the driver's version.
func TestMountSourcesAndLinks(t *testing.T) {
	cfg := hostConfig(t)
	dir := newBundle(t, newSpec("NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=all"))
	links := mustInject(t, cfg, dir).Links
	if text := fmt.Sprint(links); len(links) < 8 || strings.Contains(text, simulated.Version) {
		t.Errorf("links %s", text)
	}
	for _, m := range readSpec(t, dir).Mounts[2:] {
		driver := strings.HasPrefix(m.Source, cfg.Host.StateDir+"/view/") || strings.HasPrefix(m.Source, simulated.Root+"/")
		if !driver && m.Source != filepath.Join(dir, "application-profile.conf") && m.Source != filepath.Join(dir, "dri-by-path") {
			t.Errorf("mount source %s", m.Source)
		}
		for _, o := range []string{"ro", "nosuid", "nodev", "rprivate"} {
			if !slices.Contains(m.Options, o) {
				t.Errorf("mount at %s is not %s: %v", m.Destination, o, m.Options)
			}
		}
		if slices.Contains(m.Options, "noexec") {
			t.Errorf("mount at %s is noexec: no library of it can be mapped", m.Destination)
		}
	}
}

// mount binds source at target in the test's own mount namespace.
func mount(t testing.TB, source, target string) {
	t.Helper()
	check(t, unix.Mount(source, target, "", unix.MS_BIND, ""))
	t.Cleanup(func() {
		if err := unix.Unmount(target, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
}

// readOnly makes a root file system read-only.
func readOnly(t testing.TB, root string) {
	t.Helper()
	mount(t, root, root)
	check(t, unix.Mount("", root, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""))
}

func TestHostRootIsNotWritten(t *testing.T) {
	spec := newSpec("NVIDIA_VISIBLE_DEVICES=0")
	spec.Root.Path = "/"
	before, _ := os.ReadFile(image.CachePath)
	tmpfs("/run")(spec)
	plan := mustInject(t, hostConfig(t), newBundle(t, spec))
	if len(plan.Mounts) != 1 || plan.Mounts[0].Destination != view.Dir || len(plan.Links) > 0 {
		t.Errorf("mounts %+v, links %+v", plan.Mounts, plan.Links)
	}
	after, _ := os.ReadFile(image.CachePath)
	if _, err := os.Stat("/etc/ld.so.conf.d/000-nvidia-shim.conf"); err == nil || !bytes.Equal(before, after) {
		t.Error("the linker's files of the host changed")
	}
}

func TestADirectoryInPlaceOfTheLoadersCache(t *testing.T) {
	dir := newBundle(t, newSpec("NVIDIA_VISIBLE_DEVICES=0"))
	cache := filepath.Join(dir, "rootfs", image.CachePath)
	check(t, errors.Join(os.RemoveAll(cache), os.MkdirAll(cache, 0o755)))
	plan := mustInject(t, hostConfig(t), dir)
	if want := image.CachePath + " of the image is not written: "; plan.Linker.Cache != "unchanged" || !strings.Contains(strings.Join(plan.Notes, "\n"), want) {
		t.Errorf("cache %q, notes %q", plan.Linker.Cache, plan.Notes)
	}
}

// A user namespace has its own groups. setgroups(2) fails for a host group that it does not map,
// and the container does not start.
func TestNodeGroups(t *testing.T) {
	h := newHost(t, sim.Options{GPUs: 1})
	nodes, err := filepath.Glob(h.DevRoot + "/dev/dri/*[0-9]")
	if err != nil || len(nodes) != 2 {
		t.Fatal(nodes, err)
	}
	owned := func(gid int, mode os.FileMode) func(*config.Config) {
		return func(*config.Config) {
			for _, name := range nodes {
				check(t, errors.Join(os.Chown(name, 0, gid), os.Chmod(name, mode)))
			}
		}
	}
	own := func(s *specs.Spec) {
		userNamespace("", 100000)(s)
		s.Linux.GIDMappings = []specs.LinuxIDMapping{{ContainerID: 0, HostID: 100000, Size: 1000}, {ContainerID: 2000, HostID: 40, Size: 10}}
	}
	ofPod := func(s *specs.Spec) {
		own(s)
		s.Linux.Namespaces[2].Path = "/proc/7/ns/user"
	}
	unwanted := func(c *config.Config) {
		owned(44, 0o660)(c)
		c.Container.AdditionalGIDs = false
	}
	// Groups in the container, groups of the same container without the shim, and whether a note
	// says that one is missing.
	show := func(p Plan) string {
		return fmt.Sprint(p.Changes.Edits.AdditionalGids, p.Changes.Groups, strings.Contains(strings.Join(p.Notes, "\n"), "group"))
	}
	table{host: h, env: append(devices("0"), caps("display")...), show: show, rows: []row{
		{name: "no user namespace", config: owned(44, 0o660), want: "[44] [44] false"},
		{name: "not added by the operator's wish", config: unwanted, want: "[] [] true"},
		{name: "a node that everybody may open", config: owned(44, 0o666), want: "[] [] false"},
		{name: "a node that only its owner may open", config: owned(44, 0o600), want: "[] [] false"},
		{name: "a node of root's group", config: owned(0, 0o660), want: "[] [] false"},
		{name: "mapped in a user namespace", spec: own, config: owned(44, 0o660), want: "[2004] [44] false"},
		{name: "mapped in the pod's user namespace", spec: ofPod, config: owned(100005, 0o660), want: "[5] [100005] false"},
		{name: "the last mapped id", spec: own, config: owned(49, 0o660), want: "[2009] [49] false"},
		{name: "not mapped", spec: own, config: owned(50, 0o660), want: "[] [50] true"},
	}}.run(t)
}

// In a user namespace, runc creates no nodes but binds the host's nodes from the same paths. The
// pod's namespace that CRI names counts too.
func TestNodesInUserNamespaces(t *testing.T) {
	const node = "/dev/nvidiactl"
	show := func(p Plan) string {
		i := slices.IndexFunc(p.Mounts, func(m place.Mount) bool { return m.Destination == node })
		return fmt.Sprint(len(p.Changes.Edits.Devices), " nodes, bound ", p.Mounts[i].Options, " from ", p.Mounts[i].Source)
	}
	want := "0 nodes, bound [bind nosuid noexec rprivate] from " + simulated.DevRoot + node
	table{env: devices("0"), show: show, rows: []row{
		{name: "of the container's own", spec: userNamespace(""), want: want},
		{name: "of the pod", spec: userNamespace("/proc/7/ns/user"), want: want},
	}}.run(t)
}

// runc would also look for CDI's nodes at the same paths on the host, even for a node that the
// container does not get. Another device may not have the name of such a node.
func TestNodesOfCDIInUserNamespaces(t *testing.T) {
	const node = "/dev/nvidiactl"
	other := specs.LinuxDevice{Path: "/dev/foreign", Type: "c", Major: 240, Minor: 7}
	for _, capabilities := range []string{"all", "utility"} {
		t.Run(capabilities, func(t *testing.T) {
			spec := newSpec(caps(capabilities)...)
			all(userNamespace(""), func(s *specs.Spec) { s.Linux.Devices = append(s.Linux.Devices, other) })(spec)
			applyCDI(t, spec, realCDI(t), "nvidia.com/gpu=2")
			dir := newBundle(t, spec)
			plan := mustInject(t, hostConfig(t), dir)
			got := readSpec(t, dir)
			left := slices.DeleteFunc(got.Linux.Devices, func(d specs.LinuxDevice) bool { return strings.HasPrefix(d.Path, "/dev/dri/") })
			if showGPUs(plan) != "GPU 2" || !reflect.DeepEqual(left, []specs.LinuxDevice{other}) || !slices.Contains(destinations(got.Mounts), node) {
				t.Errorf("%s, left %+v, mounts %q", showGPUs(plan), left, destinations(got.Mounts))
			}
		})
	}
	wrong := func(s *specs.Spec) {
		s.Linux.Devices = append(s.Linux.Devices, specs.LinuxDevice{Path: node, Type: "c", Major: 1, Minor: 11})
	}
	table{env: devices("0"), rows: []row{
		{name: "another device", spec: all(userNamespace(""), wrong), want: "refused: device " + node + " is already in the container's configuration as c 1:11"},
	}}.run(t)
}

// containerd has runc map every mount of a pod with hostUsers: false. devtmpfs, which contains
// /dev/null, does not support idmapped mounts, so the device list would keep the container from
// starting.
func TestDeviceListInUserNamespaces(t *testing.T) {
	other := request.DeviceListDir + "X/1"
	for name, tc := range map[string]struct {
		userns      bool
		value, list string
	}{
		"in a user namespace": {true, request.DeviceListDir, request.DeviceListDir + "/" + simulated.GPUs[1].UUID},
		"void of CDI":         {true, "1", request.DeviceListDir + "/void"},
		"elsewhere":           {false, request.DeviceListDir, request.DeviceListDir + "/" + simulated.GPUs[1].UUID},
	} {
		t.Run(name, func(t *testing.T) {
			userns, list := tc.userns, tc.list
			spec := newSpec("NVIDIA_VISIBLE_DEVICES=" + tc.value)
			all(mounting("/dev/null", list), mounting("/dev/null", other))(spec)
			if userns {
				userNamespace("")(spec)
				for i := range spec.Mounts {
					spec.Mounts[i].UIDMappings = []specs.LinuxIDMapping{{HostID: 65536, Size: 65536}}
				}
			}
			dir := newBundle(t, spec)
			mustInject(t, hostConfig(t), dir)
			got := destinations(readSpec(t, dir).Mounts)
			if slices.Contains(got, list) == userns || !slices.Contains(got, other) {
				t.Errorf("mounts %v", got)
			}
		})
	}
}

func TestResolveChangesNothing(t *testing.T) {
	cfg := hostConfig(t)
	spec := newSpec("NVIDIA_VISIBLE_DEVICES=3,0", "NVIDIA_DRIVER_CAPABILITIES=all")
	spec.Hooks = &specs.Hooks{CreateContainer: []specs.Hook{{Path: "/usr/bin/nvidia-cdi-hook"}}}
	dir := newBundle(t, spec)
	before := readFile(t, dir, bundle.ConfigName)
	c, err := Examine(dir, loading(cfg))
	check(t, err)
	plan, err := resolveIn(t, c, filepath.Join(dir, "rootfs"), noProbe)
	check(t, err)
	if !bytes.Equal(before, readFile(t, dir, bundle.ConfigName)) {
		t.Error("config.json changed")
	}
	if _, err := os.Stat(filepath.Join(dir, "rootfs/etc/ld.so.cache")); err == nil {
		t.Error("the image changed")
	}
	if entries, err := os.ReadDir(filepath.Join(cfg.Host.StateDir, "view")); err == nil {
		t.Errorf("a view was made: %v", entries)
	}
	done := mustInject(t, cfg, dir)
	planned, _ := json.Marshal(plan)
	carriedOut, _ := json.Marshal(done)
	if !bytes.Equal(planned, carriedOut) {
		t.Errorf("planned %s\ndone    %s", planned, carriedOut)
	}
}

func TestAnImageThatCouldNotBeReadIsAnError(t *testing.T) {
	c, err := ExamineSpec(newSpec("NVIDIA_VISIBLE_DEVICES=2"), loading(hostConfig(t)))
	if err != nil {
		t.Fatal(err)
	}
	root, err := image.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	testtree.LimitDescriptors(t, 0, func() {
		if root.IsFile("etc/ld.so.cache") {
			t.Error("an empty image has a cache")
		}
	})
	_, err = Resolve(c, root, noProbe)
	refused(t, err, verdict.KindInternal, "read the image", "too many open files")
}
