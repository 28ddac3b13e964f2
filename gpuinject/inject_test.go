package gpuinject

import (
	"bytes"
	"encoding/json"
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
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host/device"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/image"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/request"
)

func TestInject(t *testing.T) {
	spec := newSpec("PATH=/bin", "NVIDIA_VISIBLE_DEVICES=2", "NVIDIA_DRIVER_CAPABILITIES=compute,utility")
	dir := newBundle(t, spec)
	inj := mustInject(t, hostConfig(t), dir)
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
	if dest := destinations(got.Mounts[len(spec.Mounts):]); !slices.Equal(dest, []string{ViewDir}) {
		t.Errorf("mounts %v, want %s only", dest, ViewDir)
	}
	dest := given(t, dir)
	if !slices.Contains(dest, "/usr/bin/nvidia-smi") {
		t.Errorf("no nvidia-smi in %v", dest)
	}
	for _, name := range directNames {
		if !slices.ContainsFunc(dest, func(d string) bool { return strings.HasPrefix(d, "/usr/lib") && filepath.Base(d) == name }) {
			t.Errorf("%s is not in the library directory: %v", name, dest)
		}
	}
	if inj.Plan.Linker.Cache != "written" || inj.Plan.Linker.LibC != "glibc" {
		t.Errorf("linker %+v", inj.Plan.Linker)
	}
}

func destinations(mounts []specs.Mount) []string {
	var out []string
	for _, m := range mounts {
		out = append(out, m.Destination)
	}
	return out
}

// Invariant I6, property T34: whatever is asked for.
func TestDeviceRules(t *testing.T) {
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

// Invariant I2: nothing of the image is a mount source.
func TestMountSources(t *testing.T) {
	cfg := hostConfig(t)
	dir := newBundle(t, newSpec("NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=all"))
	mustInject(t, cfg, dir)
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

func readFile(t testing.TB, dir, name string) []byte {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func TestRecord(t *testing.T) {
	dir := newBundle(t, newSpec("NVIDIA_VISIBLE_DEVICES=1"))
	inj := mustInject(t, hostConfig(t), dir)
	plan, err := json.MarshalIndent(inj.Plan, "", "  ")
	if written := readFile(t, dir, RecordName); err != nil || string(written) != string(plan)+"\n" {
		t.Errorf("the record says %s\nthe plan %s (%v)", written, plan, err)
	}
	info, err := os.Stat(filepath.Join(dir, RecordName))
	if err != nil || info.Mode() != 0o600 {
		t.Errorf("the record has mode %v, %v", info.Mode(), err)
	}
	record := inj.Plan
	gpu := simulated.GPUs[1]
	if !slices.Equal(record.GPUs, []PlanGPU{{Index: 1, Minor: gpu.Minor, UUID: gpu.UUID, PCI: gpu.BusID}}) ||
		!record.Proc.Masked || !slices.Equal(record.Proc.GPUs, []string{gpu.BusID}) || record.DriverVersion != simulated.Version {
		t.Errorf("record %+v", record)
	}
}

func TestReadOnlyImage(t *testing.T) {
	dir := newBundle(t, newSpec("NVIDIA_VISIBLE_DEVICES=0"))
	root := filepath.Join(dir, "rootfs")
	mount(t, root, root, "", unix.MS_BIND)
	mount(t, "", root, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY)
	inj := mustInject(t, hostConfig(t), dir)
	if inj.Plan.Linker.Cache != "mounted" {
		t.Errorf("cache %q", inj.Plan.Linker.Cache)
	}
	mounts := readSpec(t, dir).Mounts
	last := mounts[len(mounts)-1]
	if last.Destination != image.CachePath || filepath.Dir(last.Source) != dir || len(readFile(t, dir, filepath.Base(last.Source))) == 0 {
		t.Errorf("last mount %+v", last)
	}
}

// mount mounts in the test's own mount namespace.
func mount(t *testing.T, source, target, kind string, flags uintptr) {
	t.Helper()
	if err := unix.Mount(source, target, kind, flags, ""); err != nil {
		t.Fatal(err)
	}
	if flags&unix.MS_REMOUNT == 0 {
		t.Cleanup(func() {
			if err := unix.Unmount(target, unix.MNT_DETACH); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestHostRootIsNotWritten(t *testing.T) {
	spec := newSpec("NVIDIA_VISIBLE_DEVICES=0")
	spec.Root.Path = "/"
	before, _ := os.ReadFile(image.CachePath)
	mustInject(t, hostConfig(t), newBundle(t, spec))
	after, _ := os.ReadFile(image.CachePath)
	if _, err := os.Stat("/etc/ld.so.conf.d/000-nvidia-shim.conf"); err == nil || !bytes.Equal(before, after) {
		t.Error("the linker's files of the host changed")
	}
}

func TestDeviceWithOtherNumbers(t *testing.T) {
	spec := newSpec("NVIDIA_VISIBLE_DEVICES=0")
	spec.Linux.Devices = []specs.LinuxDevice{{Path: "/dev/nvidiactl", Type: "c", Major: 1, Minor: 11}}
	dir := newBundle(t, spec)
	_, err := inject(t, hostConfig(t), dir)
	refused(t, err, Invalid, "/dev/nvidiactl", "c 1:11")
	if _, err := os.Stat(filepath.Join(dir, RecordName)); err == nil {
		t.Error("a refused container has a record")
	}
}

func TestHooks(t *testing.T) {
	spec := newSpec("NVIDIA_VISIBLE_DEVICES=0")
	spec.Hooks = &specs.Hooks{
		//nolint:staticcheck // Prestart is what docker --gpus uses.
		Prestart: []specs.Hook{{Path: "/usr/bin/nvidia-container-runtime-hook", Args: []string{"x", "prestart"}}, {Path: "/opt/first"}},
		CreateContainer: []specs.Hook{
			{Path: "/opt/second"}, {Path: "/usr/bin/nvidia-cdi-hook"}, {Path: "/opt/nvidia-ctk-of-mine"}, {Path: "/usr/local/nvidia/toolkit/nvidia-ctk"},
		},
		Poststop: []specs.Hook{{Path: "/usr/bin/nvidia-container-toolkit"}, {Path: "/usr/bin/nvidia-container-cli"}},
	}
	dir := newBundle(t, spec)
	inj := mustInject(t, hostConfig(t), dir)
	var left []string
	for _, h := range request.Hooks(*readSpec(t, dir).Hooks) {
		left = append(left, h.Path)
	}
	if want := []string{"/opt/first", "/opt/second", "/opt/nvidia-ctk-of-mine"}; !slices.Equal(left, want) {
		t.Errorf("hooks left %v, want %v", left, want)
	}
	if len(inj.Plan.RemovedHooks) != 5 {
		t.Errorf("removed %v", inj.Plan.RemovedHooks)
	}

	cfg := hostConfig(t)
	cfg.Policy.ForeignHooks = config.Refuse
	_, err := resolve(t, cfg, spec)
	refused(t, err, Denied, "nvidia-container-runtime-hook", "foreign-hooks")
	spec.Hooks = &specs.Hooks{CreateContainer: []specs.Hook{{Path: "/opt/second"}}}
	if _, err := resolve(t, cfg, spec); err != nil {
		t.Errorf("hooks of others: %v", err)
	}
}

// A user namespace has groups of its own: one of the host's that it does not map
// fails setgroups(2), and with it the container.
func TestNodeGroups(t *testing.T) {
	mappings := []specs.LinuxIDMapping{{ContainerID: 0, HostID: 100000, Size: 1000}, {ContainerID: 2000, HostID: 40, Size: 10}}
	render := device.Node{Path: "/dev/dri/renderD128", HostPath: "/dev/dri/renderD128", Major: 226, Minor: 128, Mode: 0o660}
	for _, tc := range []struct {
		name string
		user string // "", "own" or "pod"
		gid  uint32
		mode os.FileMode
		want []uint32
	}{
		{"no user namespace", "", 44, 0o660, []uint32{44}},
		{"not added by the operator's wish", "", 44, 0o660, nil},
		{"a node that everybody may open", "", 44, 0o666, nil},
		{"a node that only its owner may open", "", 44, 0o600, nil},
		{"a node of root's group", "", 0, 0o660, nil},
		{"mapped in a user namespace", "own", 44, 0o660, []uint32{2004}},
		{"mapped in the pod's user namespace", "pod", 100005, 0o660, []uint32{5}},
		{"the last mapped id", "own", 49, 0o660, []uint32{2009}},
		{"not mapped", "own", 50, 0o660, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			spec := newSpec("NVIDIA_VISIBLE_DEVICES=0")
			if tc.user != "" {
				ns := specs.LinuxNamespace{Type: specs.UserNamespace}
				if tc.user == "pod" {
					ns.Path = "/proc/7/ns/user"
				}
				spec.Linux.Namespaces = append(spec.Linux.Namespaces, ns)
				spec.Linux.UIDMappings, spec.Linux.GIDMappings = mappings, mappings
			}
			c := mustExamine(t, hostConfig(t), spec)
			c.Config.Container.AdditionalGIDs = tc.name != "not added by the operator's wish"
			node := render
			node.GID, node.Mode = tc.gid, tc.mode
			var plan Plan
			addNodes(c, []device.Node{node, node}, &plan)
			if got := plan.edits.AdditionalGids; !slices.Equal(got, tc.want) {
				t.Errorf("groups %v, want %v", got, tc.want)
			}
			if noted := len(plan.Notes) > 0; noted != strings.HasPrefix(tc.name, "not ") {
				t.Errorf("notes %q", plan.Notes)
			}
			// What runs without the shim gets the same, by the host's ids.
			if got := plan.Standalone().Groups; tc.user == "" && !slices.Equal(got, tc.want) {
				t.Errorf("groups outside the shim %v, want %v", got, tc.want)
			}
		})
	}
}

// runc makes no node in a user namespace but binds the host's, which it takes from
// the same path: the pod's namespace that CRI names counts too.
func TestNodesInUserNamespaces(t *testing.T) {
	for _, path := range []string{"", "/proc/7/ns/user"} {
		spec := newSpec("NVIDIA_VISIBLE_DEVICES=0")
		spec.Linux.Namespaces = append(spec.Linux.Namespaces, specs.LinuxNamespace{Type: specs.UserNamespace, Path: path})
		dir := newBundle(t, spec)
		mustInject(t, hostConfig(t), dir)
		got := readSpec(t, dir)
		i := slices.IndexFunc(got.Mounts, func(m specs.Mount) bool { return m.Destination == "/dev/nvidiactl" })
		if len(got.Linux.Devices) != 0 || i < 0 || got.Mounts[i].Source != filepath.Join(simulated.DevRoot, "dev/nvidiactl") {
			t.Errorf("user namespace %q: devices %v, mounts %v", path, got.Linux.Devices, destinations(got.Mounts))
		}
	}
}

// containerd has runc map every mount of a pod with hostUsers: false, and devtmpfs,
// where /dev/null is, has no mapped mounts: the device list would keep the container
// from starting.
func TestDeviceListInUserNamespaces(t *testing.T) {
	list := specs.Mount{Source: "/dev/null", Destination: "/var/run/nvidia-container-devices/" + simulated.GPUs[1].UUID, Type: "bind"}
	other := specs.Mount{Source: "/dev/null", Destination: "/var/run/nvidia-container-devicesX/1", Type: "bind"}
	for name, userns := range map[string]bool{"in a user namespace": true, "elsewhere": false} {
		t.Run(name, func(t *testing.T) {
			spec, list, other := newSpec("NVIDIA_VISIBLE_DEVICES=/var/run/nvidia-container-devices"), list, other
			if userns {
				spec.Linux.Namespaces = append(spec.Linux.Namespaces, specs.LinuxNamespace{Type: specs.UserNamespace})
				mapping := []specs.LinuxIDMapping{{HostID: 65536, Size: 65536}}
				list.UIDMappings, other.UIDMappings = mapping, mapping
			}
			spec.Mounts = append(spec.Mounts, list, other)
			dir := newBundle(t, spec)
			mustInject(t, hostConfig(t), dir)
			got := destinations(readSpec(t, dir).Mounts)
			if slices.Contains(got, list.Destination) == userns || !slices.Contains(got, other.Destination) {
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
	if err != nil {
		t.Fatal(err)
	}
	plan, err := resolveIn(t, c, filepath.Join(dir, "rootfs"), noProbe)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(before, readFile(t, dir, bundle.ConfigName)) {
		t.Error("config.json changed")
	}
	if _, err := os.Stat(filepath.Join(dir, "rootfs/etc/ld.so.cache")); err == nil {
		t.Error("the image changed")
	}
	if entries, err := os.ReadDir(filepath.Join(cfg.Host.StateDir, "view")); err == nil {
		t.Errorf("a view was made: %v", entries)
	}
	done := mustInject(t, cfg, dir).Plan
	planned, _ := json.Marshal(plan)
	carriedOut, _ := json.Marshal(done)
	if !bytes.Equal(planned, carriedOut) {
		t.Errorf("planned %s\ndone    %s", planned, carriedOut)
	}
}

func TestVersionMismatch(t *testing.T) {
	version := simulated.KernelVersion
	if err := simulated.LoadModule("999.10.01"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := simulated.LoadModule(version); err != nil {
			t.Error(err)
		}
	})
	_, err := resolve(t, hostConfig(t), newSpec("NVIDIA_VISIBLE_DEVICES=0"))
	refused(t, err, Precondition, "999.10.01", version)
}
