package gpuinject

import (
	"os"
	"path"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/image"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/procmask"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/request"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/verdict"
)

// userNamespace puts the container into a user namespace.
func userNamespace(path string, hostIDs ...uint32) func(*specs.Spec) {
	return func(s *specs.Spec) {
		s.Linux.Namespaces = append(s.Linux.Namespaces, specs.LinuxNamespace{Type: specs.UserNamespace, Path: path})
		for i, id := range hostIDs {
			s.Linux.UIDMappings = append(s.Linux.UIDMappings, specs.LinuxIDMapping{ContainerID: uint32(i) * 1000, HostID: id, Size: 1000})
		}
	}
}

func TestWhoGetsTheMask(t *testing.T) {
	const masked, not = "masked, shows GPU 1", "not masked"
	table{env: devices("1"), show: showProc, rows: []row{
		{name: "an ordinary container", want: masked},
		{name: "an unmasked /proc alone", spec: unmasked, want: masked},
		{name: "CAP_SYS_ADMIN alone", spec: admin, want: masked},
		{name: "privileged", spec: privileged, want: not},
		{name: "a user namespace", spec: userNamespace("", 100000), want: masked},
		{name: "an unmasked /proc in a user namespace", spec: all(unmasked, userNamespace("", 100000)), want: not},
		{name: "an unmasked /proc in the user namespace of the pod", spec: all(unmasked, userNamespace("/proc/7/ns/user", 100000)), want: not},
		{name: "an unmasked /proc in a user namespace that has the host's root", spec: all(unmasked, userNamespace("", 100000, 0)), want: masked},
		{name: "an unmasked /proc in a user namespace of unknown users", spec: all(unmasked, userNamespace("/proc/1/ns/user")), want: masked},
	}}.run(t)
	plan := mustInject(t, hostConfig(t), newBundle(t, newSpec("NVIDIA_VISIBLE_DEVICES=0")))
	params := slices.IndexFunc(plan.Changes.Mask, func(f procmask.File) bool { return path.Base(f.Path) == "params" })
	if !plan.Proc.Masked || params < 0 || !strings.Contains(string(plan.Changes.Mask[params].Data), "ModifyDeviceFiles: 0\n") {
		t.Errorf("the mask is %q", plan.Changes.Mask)
	}
}

// inject resolves a container with an empty image, and carries the plan out.
func inject(t *testing.T, c Container) (Plan, *procmask.Mask, error) {
	t.Helper()
	root, err := image.Open(t.TempDir())
	check(t, err)
	defer root.Close()
	plan, err := Resolve(c, root, noProbe)
	if err != nil {
		return plan, nil, err
	}
	return Apply(c, plan, root)
}

// A pod's author can override the device plugin's variable, but nodes of the driver still bring the
// mask.
func TestNodesWithoutARequestBringTheMask(t *testing.T) {
	other := func(s *specs.Spec) {
		s.Linux.Devices = []specs.LinuxDevice{{Path: "/dev/fuse", Type: "c", Major: 10, Minor: 229}}
	}
	for _, tc := range []struct {
		name string
		env  []string
		spec func(*specs.Spec)
		want string
	}{
		{"void", devices("void"), inPod(1), "masked, shows GPU 1"},
		{"empty", devices(""), inPod(1, 2), "masked, shows GPU 1, GPU 2"},
		{"unset", nil, inPod(1), "masked, shows GPU 1"},
		{"outside Kubernetes", nil, withNode(simulated.Majors.GPU, simulated.GPUs[3].Minor), "masked, shows GPU 3"},
		{"the control node alone", devices("void"), withNode(simulated.Majors.GPU, 255), "masked, shows "},
		{"annotations that do not count", devices("void"), all(inPod(1), annotated("nvidia.cdi.k8s.io", "nvidia.com/gpu=3")), "masked, shows GPU 1"},
		{"under another name", nil, all(withNode(simulated.Majors.GPU, simulated.GPUs[3].Minor), func(s *specs.Spec) { s.Linux.Devices[0].Path = "/dev/gpu0" }), "masked, shows GPU 3"},
		{"privileged", devices("void"), all(inPod(1), privileged), "left alone"},
		{"no node of the driver", devices("void"), all(inPod(), other), "left alone"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			spec := newSpec(tc.env...)
			tc.spec(spec)
			for i := range spec.Linux.Devices { // as a device plugin names them
				if spec.Linux.Devices[i].Major == 195 && spec.Linux.Devices[i].Path != "/dev/gpu0" {
					spec.Linux.Devices[i].Path = "/dev/nvidia0"
				}
			}
			dir := newBundle(t, spec)
			before := readFile(t, dir, "config.json")
			c, err := Examine(dir, loading(hostConfig(t)))
			if err != nil || c.Asks {
				t.Fatalf("examine: %+v, %v", c, err)
			}
			got := "left alone"
			if !c.Plain {
				plan, mask, err := inject(t, c)
				if err != nil || mask == nil {
					t.Fatal(mask, err)
				}
				defer mask.Close()
				got = showProc(plan)
			}
			if got != tc.want || string(readFile(t, dir, "config.json")) != string(before) {
				t.Errorf("%s, want %s, and the same config.json", got, tc.want)
			}
		})
	}
	s := newSpec(devices("void")...)
	inPod(1)(s)
	s.Mounts = s.Mounts[1:]
	c, err := ExamineSpec(s, loading(hostConfig(t)))
	if err == nil {
		_, _, err = inject(t, c)
	}
	refused(t, err, verdict.KindInvalid, "no procfs of its own")
	c.Config.Host.ProcRoot = t.TempDir()
	if _, mask, err := inject(t, c); err != nil || mask != nil {
		t.Errorf("on a host without a driver: %v, %v", mask, err)
	}
}

// NVIDIA's hooks would give a container what it asks for, regardless of what was granted to it.
func TestT21HooksWhereNothingIsGranted(t *testing.T) {
	for _, tc := range []struct {
		name string
		env  []string
		spec func(*specs.Spec)
	}{
		{"a pod that was given nothing", devices("all"), inPod()},
		{"the sandbox of a pod", devices("all"), annotated("io.kubernetes.cri.container-type", "sandbox")},
		{"a list that does not count", nil, listing("0")},
		{"nothing asked for", nil, func(*specs.Spec) {}},
		{"void", devices("void"), privileged},
		{"void and nodes", devices("void"), inPod(1)},
	} {
		t.Run(tc.name, func(t *testing.T) {
			cfg := hostConfig(t)
			cfg.Policy.AcceptVolumeMounts = false
			spec := newSpec(tc.env...)
			tc.spec(spec)
			withHook("/usr/bin/nvidia-container-runtime-hook")(spec)
			other := specs.Hook{Path: "/opt/other/hook"}
			spec.Hooks.CreateRuntime = []specs.Hook{other, {Path: "/opt/wrapper", Args: []string{"nvidia-ctk", "hook"}}}
			create := func() (string, Plan, error) {
				dir := newBundle(t, spec)
				c, err := Examine(dir, loading(cfg))
				if err != nil || c.Plain {
					t.Fatalf("%+v, %v", c, err)
				}
				p, mask, err := inject(t, c)
				if mask != nil {
					mask.Close()
				}
				return dir, p, err
			}
			dir, p, err := create()
			if hooks := request.Hooks(*readSpec(t, dir).Hooks); err != nil || p.GPU || len(hooks) != 1 || !reflect.DeepEqual(hooks[0], other) || len(p.RemovedHooks) != 2 {
				t.Errorf("hooks %+v, removed %q, %v", hooks, p.RemovedHooks, err)
			}
			cfg.Policy.ForeignHooks = config.Refuse
			_, _, err = create()
			refused(t, err, verdict.KindDenied, "NVIDIA's OCI hook", `"refuse"`)
		})
	}
}

// A container whose mounts or nodes are not its own is refused.
func TestIsolation(t *testing.T) {
	noProc := func(s *specs.Spec) { s.Mounts = s.Mounts[1:] }
	table{env: devices("0"), rows: []row{
		{name: "no mount namespace", spec: func(s *specs.Spec) { s.Linux.Namespaces = s.Linux.Namespaces[1:] }, want: "refused: no mount namespace"},
		{name: "the mount namespace of another", spec: func(s *specs.Spec) { s.Linux.Namespaces[0].Path = "/proc/1/ns/mnt" }, want: "refused: no mount namespace"},
		{name: "no /proc", spec: noProc, want: "refused: no procfs"},
		{name: "no /proc, and privileged", spec: all(noProc, privileged), want: "GPU 0"},
		{name: "the host's /proc over its own", spec: mounting("/srv", "/proc/"), want: "refused: no procfs"},
		{name: "its own /proc over the host's", spec: func(s *specs.Spec) {
			s.Mounts = append([]specs.Mount{{Source: "/srv", Destination: "/proc", Type: "bind"}}, s.Mounts...)
		}, want: "GPU 0"},
		{name: "a bind that calls itself proc", spec: func(s *specs.Spec) { s.Mounts[0].Options = []string{"rbind"} }, want: "refused: no procfs"},
		{name: "the host's /proc by a link of the image", spec: mounting("/proc", "/p"), want: "refused: no procfs",
			image: func(root string) { symlink(t, "./proc", filepath.Join(root, "p")) }},
		{name: "another file system at /proc", spec: func(s *specs.Spec) { s.Mounts[0].Type = "tmpfs" }, want: "refused: no procfs"},
		{name: "a node with another device's number", want: "refused: c 1:11", kind: verdict.KindInvalid, spec: func(s *specs.Spec) {
			s.Linux.Devices = []specs.LinuxDevice{{Path: "/dev/nvidiactl", Type: "c", Major: 1, Minor: 11}}
		}},
		{name: "a /proc that is written oddly", spec: func(s *specs.Spec) { s.Mounts[0].Destination = "proc/." }, want: "GPU 0"},
	}}.run(t)
}

// T32: a kernel without SELinux does not know the label that a container with SELinux has.
func TestT32TheMaskGetsTheMountLabel(t *testing.T) {
	spec := newSpec("NVIDIA_VISIBLE_DEVICES=0")
	spec.Linux.MountLabel = "system_u:object_r:container_file_t:s0:c1,c2"
	c, err := ExamineSpec(spec, loading(hostConfig(t)))
	check(t, err)
	c.Bundle.Dir = newBundle(t, spec)
	_, mask, err := inject(t, c)
	if mask != nil {
		mask.Close()
	}
	_, noSELinux := os.Stat("/sys/fs/selinux/enforce")
	if noSELinux == nil {
		check(t, err)
	} else if err == nil || !strings.Contains(err.Error(), spec.Linux.MountLabel) {
		t.Errorf("error %v", err)
	}
}
