package gpuinject

import (
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

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/cdispec"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/bundle"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
)

// nvidiaMount are the options of nvidia-ctk 1.18 and later (toolkit.md 4.2).
var nvidiaMount = []string{"ro", "nosuid", "nodev", "rbind", "rprivate"}

// nvidiaCDI is what `nvidia-ctk cdi generate` writes for the simulated driver: one
// device for each GPU by index, common nodes, driver files at the host's paths, hooks.
func nvidiaCDI(t testing.TB, hook []string) string {
	t.Helper()
	root := simulated.Root
	type M = map[string]any
	node := func(name string) M {
		return M{"path": "/dev/" + name, "hostPath": simulated.DevRoot + "/dev/" + name, "permissions": "rwm"}
	}
	mount := func(name string) M {
		return M{"hostPath": root + name, "containerPath": name, "options": nvidiaMount}
	}
	hooked := func(args ...string) M {
		return M{"hookName": "createContainer", "path": hook[0], "args": append(slices.Clone(hook[1:]), args...), "env": []string{"NVIDIA_CTK_DEBUG=false"}}
	}
	lib := "/usr/lib/x86_64-linux-gnu/"
	if found, _ := filepath.Glob(root + "/usr/lib/*/libcuda.so." + simulated.Version); len(found) > 0 {
		lib = strings.TrimPrefix(filepath.Dir(found[0]), root) + "/"
	}
	mounts := []M{mount("/usr/bin/nvidia-smi"), mount("/usr/bin/nvidia-cuda-mps-server")}
	for _, name := range []string{"libcuda.so.", "libnvidia-ml.so.", "libnvidia-ptxjitcompiler.so.", "libGLX_nvidia.so.", "vdpau/libvdpau_nvidia.so."} {
		mounts = append(mounts, mount(lib+name+simulated.Version))
	}
	// Of a driver that is gone, in a specification that nobody generated anew.
	mounts = append(mounts, mount(lib+"libnvidia-old.so.470.1.2"))
	mounts = append(mounts, M{"hostPath": "/run/nvidia-persistenced/socket", "containerPath": "/run/nvidia-persistenced/socket", "options": []string{"nosuid", "nodev", "rbind", "rprivate", "noexec"}})
	var devices []M
	for _, g := range simulated.GPUs {
		devices = append(devices, M{"name": fmt.Sprint(g.Index), "containerEdits": M{"deviceNodes": []M{node(fmt.Sprintf("nvidia%d", g.Minor))}}})
	}
	text, err := json.Marshal(M{
		"cdiVersion": "0.5.0", "kind": "nvidia.com/gpu", "devices": devices,
		"containerEdits": M{
			"env":         []string{"NVIDIA_CTK_LIBCUDA_DIR=" + lib, "NVIDIA_VISIBLE_DEVICES=void"},
			"deviceNodes": []M{node("nvidiactl"), node("nvidia-uvm"), node("nvidia-uvm-tools")},
			"mounts":      mounts,
			"hooks":       []M{hooked("create-symlinks", "--link", "libcuda.so.1::"+lib+"libcuda.so"), hooked("update-ldcache", "--folder", lib)},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	writeFile(t, filepath.Join(dir, "nvidia.json"), string(text), 0o644)
	return dir
}

// applyCDI does to spec what containerd and docker do: the CDI project's own library,
// rules that allow mknod included.
func applyCDI(t testing.TB, spec *specs.Spec, dir string, names ...string) {
	t.Helper()
	e, err := cdispec.Find(bundle.CDIRequest{Dirs: []string{dir}, Names: names})
	if err != nil || e.Unknown != "" {
		t.Fatal(e, err)
	}
	spec.Process.Env = append(spec.Process.Env, e.Env...)
	spec.Linux.Devices = append(spec.Linux.Devices, e.Devices...)
	for _, r := range e.Rules {
		r.Access = "rwm"
		spec.Linux.Resources.Devices = append(spec.Linux.Resources.Devices, r)
	}
	spec.Mounts = append(spec.Mounts, e.Mounts...)
	if e.Hooks != nil {
		spec.Hooks = e.Hooks
	}
}

// ctkForms are the two ways in which NVIDIA's specifications name their hooks.
var ctkForms = [][]string{
	{"/usr/bin/nvidia-cdi-hook", "nvidia-cdi-hook"},
	{"/usr/bin/nvidia-ctk", "nvidia-ctk", "hook"},
	{"/usr/local/nvidia/toolkit/nvidia-ctk.real", "nvidia-ctk", "hook"},
	{"/opt/wrapper", "nvidia-cdi-hook"},
}

func TestWhatCDIGaveIsTakenOver(t *testing.T) {
	for _, form := range ctkForms {
		t.Run(form[0], func(t *testing.T) {
			spec := newSpec("PATH=/bin", "NVIDIA_VISIBLE_DEVICES=all")
			foreign := specs.Hook{Path: "/opt/other/hook", Args: []string{"hook", "nvidia"}}
			applyCDI(t, spec, nvidiaCDI(t, form), "nvidia.com/gpu=2")
			spec.Hooks.CreateContainer = slices.Insert(spec.Hooks.CreateContainer, 1, foreign)
			spec.Linux.Devices = append(spec.Linux.Devices, specs.LinuxDevice{Path: "/dev/foreign", Type: "c", Major: 240, Minor: 7})
			major, minor := int64(240), int64(7)
			rule := specs.LinuxDeviceCgroup{Allow: true, Type: "c", Major: &major, Minor: &minor, Access: "rwm"}
			spec.Linux.Resources.Devices = append(spec.Linux.Resources.Devices, rule)
			// A user's own mounts of driver files, as docker --volume makes them.
			users := []specs.Mount{
				{Source: simulated.Root + "/usr/bin/nvidia-smi", Destination: "/opt/smi", Type: "bind", Options: nvidiaMount},
				{Source: simulated.Root + "/usr/bin/nvidia-debugdump", Destination: "/usr/bin/nvidia-debugdump", Type: "bind", Options: []string{"rbind", "rprivate"}},
				{Source: simulated.Root + "/usr/bin/nvidia-persistenced", Destination: "/usr/bin/nvidia-persistenced", Type: "bind", Options: []string{"rbind", "rprivate", "ro"}},
			}
			spec.Mounts = append(spec.Mounts, users...)
			before := len(spec.Linux.Devices)

			dir := newBundle(t, spec)
			inj := mustInject(t, hostConfig(t), dir)
			got := readSpec(t, dir)

			if len(inj.Plan.GPUs) != 1 || inj.Plan.GPUs[0].Index != 2 || !strings.Contains(inj.Plan.Grant, "taken over from CDI: "+simulated.GPUs[2].UUID) {
				t.Errorf("GPUs %+v, grant %q", inj.Plan.GPUs, inj.Plan.Grant)
			}
			if !slices.Equal(inj.Plan.RemovedHooks, []string{form[0], form[0]}) {
				t.Errorf("removed hooks %q", inj.Plan.RemovedHooks)
			}
			if h := got.Hooks.CreateContainer; len(h) != 1 || !reflect.DeepEqual(h[0], foreign) {
				t.Errorf("hooks %+v", h)
			}
			if !slices.ContainsFunc(got.Linux.Resources.Devices, func(r specs.LinuxDeviceCgroup) bool { return reflect.DeepEqual(r, rule) }) {
				t.Error("the rule of another vendor's device is gone")
			}
			for _, r := range got.Linux.Resources.Devices[1:] {
				if r.Access != "rw" && *r.Major != 240 {
					t.Errorf("rule %d:%d allows %s", *r.Major, *r.Minor, r.Access)
				}
			}
			numbers := map[string]int{}
			for _, d := range got.Linux.Devices {
				numbers[fmt.Sprint(d.Major, ":", d.Minor)]++
			}
			for n, count := range numbers {
				if count != 1 {
					t.Errorf("node %s is there %d times", n, count)
				}
			}
			for _, g := range simulated.GPUs {
				if want := g.Index == 2; numbers[fmt.Sprint(simulated.Majors.GPU, ":", g.Minor)] == 1 != want {
					t.Errorf("the node of GPU %d: want %v in %v", g.Index, want, numbers)
				}
			}
			// Everything is supported, so the nodes of graphics come on top.
			if len(got.Linux.Devices) < before {
				t.Errorf("%d nodes of %d", len(got.Linux.Devices), before)
			}
			for _, u := range users {
				if !slices.ContainsFunc(got.Mounts, func(m specs.Mount) bool { return reflect.DeepEqual(m, u) }) {
					t.Errorf("the user's mount at %s is gone", u.Destination)
				}
			}
			for _, m := range got.Mounts {
				base := filepath.Base(m.Destination)
				if strings.Contains(base, ".so."+simulated.Version) && !strings.Contains(m.Destination, "xorg") || strings.HasSuffix(m.Destination, "socket") || strings.Contains(base, "470.1.2") {
					t.Errorf("CDI's mount at %s is still there", m.Destination)
				}
			}
			if n := strings.Count(strings.Join(destinations(got.Mounts), " ")+" ", "/usr/bin/nvidia-smi "); n != 1 {
				t.Errorf("nvidia-smi is mounted %d times: %q", n, destinations(got.Mounts))
			}
			if !strings.Contains(strings.Join(inj.Plan.Notes, "\n"), "/run/nvidia-persistenced/socket") {
				t.Errorf("notes %q do not tell of the socket", inj.Plan.Notes)
			}
			if want := hostConfig(t).Container.SupportedCapabilities; len(inj.Plan.Capabilities) != len(want) {
				t.Errorf("capabilities %q, want all of %q", inj.Plan.Capabilities, want)
			}
			t.Run("once", func(t *testing.T) {
				job, _, err := Examine(dir, loading(hostConfig(t)))
				if job != nil || err != nil {
					t.Errorf("%+v, %v: without its hooks a container that says void is left alone", job, err)
				}
			})
		})
	}
}

func TestCapabilitiesOfAContainerThatIsTakenOver(t *testing.T) {
	for env, want := range map[string]string{
		"NVIDIA_DRIVER_CAPABILITIES=utility": "utility",
		"NVIDIA_DRIVER_CAPABILITIES=":        "compat32,compute,display,graphics,ngx,utility,video",
		"A=b":                                "compat32,compute,display,graphics,ngx,utility,video",
	} {
		spec := newSpec(env)
		applyCDI(t, spec, nvidiaCDI(t, ctkForms[0]), "nvidia.com/gpu=0")
		job, err := resolve(t, hostConfig(t), spec)
		if err != nil || strings.Join(job.Plan.Capabilities, ",") != want {
			t.Errorf("%s: %v, %v", env, job.Plan.Capabilities, err)
		}
	}
}

func TestTakingOverGivesNoMoreThanTheSpecificationHas(t *testing.T) {
	m := simulated.Majors
	for _, tc := range []struct {
		name  string
		names []string
		nodes []specs.LinuxDevice
		pod   bool
		env   []string
		gpus  []int
		class []string
		imex  []int
	}{
		{name: "two of four", names: []string{"0", "3"}, gpus: []int{0, 3}},
		{name: "an image that wants more", names: []string{"1"}, env: []string{"NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_GDS=enabled", "NVIDIA_IMEX_CHANNELS=0"}, gpus: []int{1}},
		{name: "in a pod", names: []string{"1"}, pod: true, gpus: []int{1}},
		{name: "a channel and an nvidia-fs node", names: []string{"1"}, gpus: []int{1}, class: []string{"imex", "gds"}, imex: []int{2},
			nodes: []specs.LinuxDevice{{Path: "/dev/c", Type: "c", Major: int64(m.IMEX), Minor: 2}, {Path: "/dev/nvidia-fs0", Type: "c", Major: int64(m.FS), Minor: 0}}},
		{name: "an RDMA adapter is somebody else's", names: []string{"1"}, gpus: []int{1}, nodes: []specs.LinuxDevice{{Path: "/dev/v", Type: "c", Major: int64(m.Verbs), Minor: 192}}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			spec := newSpec(tc.env...)
			if tc.pod {
				spec = pod(t, "default", nil, tc.env...)
			}
			var names []string
			for _, n := range tc.names {
				names = append(names, "nvidia.com/gpu="+n)
			}
			applyCDI(t, spec, nvidiaCDI(t, ctkForms[0]), names...)
			spec.Linux.Devices = append(spec.Linux.Devices, tc.nodes...)
			job, err := resolve(t, hostConfig(t), spec)
			if err != nil {
				t.Fatal(err)
			}
			var gpus []int
			for _, g := range job.Plan.GPUs {
				gpus = append(gpus, g.Index)
			}
			if !slices.Equal(gpus, tc.gpus) || !slices.Equal(job.Plan.Classes, tc.class) || !slices.Equal(job.Plan.IMEX, tc.imex) {
				t.Errorf("GPUs %v, classes %q, channels %v; want %v %q %v", gpus, job.Plan.Classes, job.Plan.IMEX, tc.gpus, tc.class, tc.imex)
			}
		})
	}
}

func TestWhatIsNotTakenOver(t *testing.T) {
	cdi := nvidiaCDI(t, ctkForms[0])
	for _, tc := range []struct {
		name   string
		change func(*specs.Spec)
	}{
		{"no hook of NVIDIA's", func(s *specs.Spec) { s.Hooks = nil }},
		{"hooks of others only", func(s *specs.Spec) {
			s.Hooks = &specs.Hooks{CreateContainer: []specs.Hook{{Path: "/opt/hook", Args: []string{"hook", "nvidia-cdi-hook"}}}}
		}},
		{"no node of the driver", func(s *specs.Spec) { s.Linux.Devices = nil }},
		{"the sandbox of a pod", func(s *specs.Spec) { s.Annotations["io.kubernetes.cri.container-type"] = "sandbox" }},
		{"an annotation that containerd has resolved", func(s *specs.Spec) {
			s.Hooks, s.Annotations["cdi.k8s.io/x"] = nil, "nvidia.com/gpu=0"
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			spec := newSpec()
			applyCDI(t, spec, cdi, "nvidia.com/gpu=0")
			tc.change(spec)
			job, err := ExamineSpec(spec, func() (*config.Config, error) {
				t.Error("the configuration was loaded")
				return config.Default(), nil
			})
			if job != nil || err != nil {
				t.Errorf("%+v, %v", job, err)
			}
		})
	}
}

func TestAnOperatorWhoRefusesHooksRefusesCDIs(t *testing.T) {
	cfg := hostConfig(t)
	cfg.Policy.ForeignHooks = config.Refuse
	spec := newSpec()
	applyCDI(t, spec, nvidiaCDI(t, ctkForms[1]), "nvidia.com/gpu=0")
	_, err := resolve(t, cfg, spec)
	refused(t, err, Denied, "/usr/bin/nvidia-ctk", "refuse")
}

// What docker --gpus '"device=1"' makes (moby daemon/nvidia_linux.go).
func TestDockersGPUsFlagIsTakenOver(t *testing.T) {
	spec := newSpec("PATH=/bin", "NVIDIA_VISIBLE_DEVICES=1", "NVIDIA_DRIVER_CAPABILITIES=compute,utility")
	hook := "/usr/bin/nvidia-container-runtime-hook"
	spec.Hooks = &specs.Hooks{Prestart: []specs.Hook{ //nolint:staticcheck // what docker writes
		{Path: hook, Args: []string{hook, "prestart"}, Env: []string{"PATH=/bin"}}, {Path: "/opt/libnetwork-setkey"},
	}}
	dir := newBundle(t, spec)
	inj := mustInject(t, hostConfig(t), dir)
	got := readSpec(t, dir)
	if p := got.Hooks.Prestart; len(p) != 1 || p[0].Path != "/opt/libnetwork-setkey" { //nolint:staticcheck // what docker writes
		t.Errorf("hooks %+v", p)
	}
	if len(inj.Plan.GPUs) != 1 || inj.Plan.GPUs[0].Index != 1 || !slices.Equal(inj.Plan.Capabilities, []string{"compute", "utility"}) {
		t.Errorf("%+v", inj.Plan)
	}
}

func TestAnnotationsGrantOutsideKubernetesAndSelectInAPod(t *testing.T) {
	const key = "cdi.k8s.io/x"
	unprivileged := func(p *config.Policy) { p.AcceptEnvWhenUnprivileged = false }
	for _, tc := range []struct {
		name, value string
		env         []string
		pod         bool
		allocated   []int
		change      func(*config.Policy)
		want        []int
		nothing     bool
		left        bool
	}{
		{name: "outside Kubernetes", value: "nvidia.com/gpu=3", want: []int{3}},
		{name: "outside Kubernetes it goes before the environment", value: "nvidia.com/gpu=3", env: []string{"NVIDIA_VISIBLE_DEVICES=0"}, want: []int{3}},
		{name: "outside Kubernetes it grants where the environment does not", value: "nvidia.com/gpu=3", want: []int{3}, change: unprivileged},
		{name: "void leaves it alone", value: "nvidia.com/gpu=3", env: []string{"NVIDIA_VISIBLE_DEVICES=void"}, left: true},
		{name: "in a pod it selects among the allocated", value: "nvidia.com/gpu=3", pod: true, allocated: []int{1, 3}, want: []int{3}},
		{name: "in a pod it does not grant", value: "nvidia.com/gpu=3", pod: true, allocated: []int{1}, nothing: true},
		{name: "in a pod it does not stand in the way of what was allocated", value: "nvidia.com/gpu=3", env: []string{"NVIDIA_VISIBLE_DEVICES=all"}, pod: true, allocated: []int{1}, want: []int{1}},
		{name: "in a pod that names GPUs by its environment too", value: "nvidia.com/gpu=1", env: []string{"NVIDIA_VISIBLE_DEVICES=all"}, pod: true, allocated: []int{1, 2}, want: []int{1}},
		{name: "in a pod beside an environment that nobody has to read", value: "nvidia.com/gpu=1", env: []string{"NVIDIA_VISIBLE_DEVICES=nvidia.com/toaster=0"}, pod: true, allocated: []int{1, 2}, want: []int{1}},
		{name: "in a pod beside a device list that does not count", value: "nvidia.com/gpu=1", env: []string{"NVIDIA_VISIBLE_DEVICES=/var/run/nvidia-container-devices"}, pod: true, allocated: []int{1, 2}, want: []int{1},
			change: func(p *config.Policy) { p.AcceptVolumeMounts = false }},
		{name: "in a pod, all of what was allocated", value: "nvidia.com/gpu=all", pod: true, allocated: []int{1, 2}, want: []int{1, 2}},
		{name: "in a pod without an allocation", value: "nvidia.com/gpu=3", pod: true, nothing: true},
		{name: "in a pod, a GPU that no host has", value: "nvidia.com/gpu=77", pod: true, allocated: []int{1}, nothing: true},
		{name: "in a pod, another vendor's", value: "example.com/nic=0", pod: true, left: true},
		{name: "in a pod, a mistake", value: "k8s.gpu.nvidia.com/claim=abc", pod: true, left: true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			cfg := hostConfig(t)
			if tc.change != nil {
				tc.change(&cfg.Policy)
			}
			spec := newSpec(tc.env...)
			if tc.pod {
				spec = pod(t, "default", tc.allocated, tc.env...)
			}
			spec.Annotations[key] = tc.value
			if tc.left {
				if job, err := ExamineSpec(spec, loading(cfg)); job != nil || err != nil {
					t.Errorf("%+v, %v", job, err)
				}
				return
			}
			job, err := resolve(t, cfg, spec)
			if tc.nothing {
				if !errors.Is(err, ErrNotGranted) || len(job.Plan.Ignored) != 1 {
					t.Errorf("%v, ignored %q", err, job.Plan.Ignored)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			var gpus []int
			for _, g := range job.Plan.GPUs {
				gpus = append(gpus, g.Index)
			}
			if !slices.Equal(gpus, tc.want) {
				t.Errorf("GPUs %v, want %v", gpus, tc.want)
			}
		})
	}
	t.Run("in a pod on a host without a driver", func(t *testing.T) {
		cfg := hostConfig(t)
		spec := pod(t, "default", nil)
		cfg.Host.ProcRoot = t.TempDir()
		spec.Annotations[key] = "nvidia.com/gpu=0"
		if _, err := resolve(t, cfg, spec); !errors.Is(err, ErrNotGranted) {
			t.Errorf("%v", err)
		}
	})
	t.Run("in a pod that has to be read by its environment, a mistake there is an error", func(t *testing.T) {
		spec := pod(t, "default", []int{1}, "NVIDIA_VISIBLE_DEVICES=nvidia.com/toaster=0")
		spec.Annotations[key] = "nvidia.com/gpu=3"
		_, err := resolve(t, hostConfig(t), spec)
		refused(t, err, Invalid, "nvidia.com/toaster=0")
	})
	t.Run("a malformed one outside Kubernetes is an error", func(t *testing.T) {
		spec := newSpec()
		spec.Annotations[key] = "nvidia.com/toaster=0"
		_, err := ExamineSpec(spec, loading(hostConfig(t)))
		refused(t, err, Invalid, "cdi.k8s.io/x", "nvidia.com/toaster=0")
	})
	t.Run("other devices by annotation are granted outside Kubernetes only", func(t *testing.T) {
		for _, inPod := range []bool{false, true} {
			cfg := hostConfig(t)
			unprivileged(&cfg.Policy)
			spec := newSpec()
			if inPod {
				spec = pod(t, "default", []int{0})
			}
			spec.Annotations[key] = "nvidia.com/gpu=0,nvidia.com/gdrcopy=all,nvidia.com/imex-channel=1"
			job, err := resolve(t, cfg, spec)
			if err != nil {
				t.Fatal(err)
			}
			if got := len(job.Plan.Classes) == 2; got == inPod {
				t.Errorf("in a pod %v: classes %q, ignored %q", inPod, job.Plan.Classes, job.Plan.Ignored)
			}
		}
	})
}

func TestTheDirectoryOfTheDeviceListWhereMountsDoNotCount(t *testing.T) {
	cfg := hostConfig(t)
	ask := "NVIDIA_VISIBLE_DEVICES=/var/run/nvidia-container-devices"
	_, err := ExamineSpec(newSpec(ask), loading(cfg))
	refused(t, err, Invalid, "the container has none")
	cfg.Policy.AcceptVolumeMounts = false
	spec := newSpec(ask)
	spec.Mounts = append(spec.Mounts, specs.Mount{Source: "/dev/null", Destination: "/var/run/nvidia-container-devices/0"})
	_, err = ExamineSpec(spec, loading(cfg))
	refused(t, err, Denied, "policy.accept-volume-mounts is false")
	cfg.Policy.AcceptVolumeMounts = true
	job, err := resolve(t, cfg, spec)
	if err != nil || len(job.Plan.GPUs) != 1 {
		t.Errorf("%+v, %v", job.Plan.GPUs, err)
	}
}

func TestSwarmsVariablesCountOnlyWhereTheyAreConfigured(t *testing.T) {
	cfg := hostConfig(t)
	spec := newSpec("DOCKER_RESOURCE_GPU=2")
	if job, err := ExamineSpec(spec, loading(cfg)); job != nil || err != nil {
		t.Errorf("%+v, %v", job, err)
	}
	cfg.Policy.SwarmResources = []string{"DOCKER_RESOURCE_GPU"}
	job, err := resolve(t, cfg, spec)
	if err != nil || len(job.Plan.GPUs) != 1 || job.Plan.GPUs[0].Index != 2 {
		t.Errorf("%+v, %v", job.Plan.GPUs, err)
	}
	// A pod with such a variable does not meet the configuration, broken or not.
	job, err = ExamineSpec(pod(t, "default", nil, "DOCKER_RESOURCE_GPU=2"), func() (*config.Config, error) {
		return nil, errors.New("configuration /etc/x: line 3: unknown key")
	})
	if job != nil || err != nil {
		t.Errorf("a pod: %+v, %v", job, err)
	}
	if !mightAsk([]byte(`{"env": ["DOCKER_RESOURCE_GPU=2"]}`)) {
		t.Error("the first look passes such a container over")
	}
}

// foreignCDI is another vendor's specification.
const foreignCDI = `{"cdiVersion": "0.6.0", "kind": "example.com/nic",
 "containerEdits": {"env": ["NIC_VENDOR=example", "PATH=/nic/bin"], "hooks": [{"hookName": "createRuntime", "path": "/opt/nic/hook", "args": ["hook", "up"]}]},
 "devices": [{"name": "eth0", "containerEdits": {
   "deviceNodes": [{"path": "/dev/nic0", "type": "c", "major": 240, "minor": 3}],
   "mounts": [{"hostPath": "/opt/nic/lib", "containerPath": "/opt/nic/lib", "options": ["ro", "bind"]}]}}]}`

func foreignDirs(t testing.TB, cfg *config.Config, text string) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(dir, "nic.json")
	writeFile(t, name, text, 0o644)
	cfg.Host.CDISpecDirs = []string{filepath.Join(dir, "none"), dir}
	return name
}

func TestAnotherVendorsDevicesComeFromTheHostsSpecifications(t *testing.T) {
	for _, ask := range []string{"nvidia.com/gpu=1,example.com/nic=eth0", "example.com/nic=eth0"} {
		t.Run(ask, func(t *testing.T) {
			cfg := hostConfig(t)
			foreignDirs(t, cfg, foreignCDI)
			dir := newBundle(t, newSpec("PATH=/bin", "NVIDIA_VISIBLE_DEVICES="+ask))
			inj := mustInject(t, cfg, dir)
			got := readSpec(t, dir)
			if n := len(inj.Plan.GPUs); n != strings.Count(ask, "gpu") || !slices.Equal(inj.Plan.Foreign, []string{"example.com/nic=eth0"}) {
				t.Errorf("%d GPUs, foreign %q", n, inj.Plan.Foreign)
			}
			if len(got.Hooks.CreateRuntime) != 1 || got.Hooks.CreateRuntime[0].Path != "/opt/nic/hook" {
				t.Errorf("hooks %+v", got.Hooks)
			}
			if !slices.ContainsFunc(got.Linux.Devices, func(d specs.LinuxDevice) bool { return d.Path == "/dev/nic0" && d.Minor == 3 }) {
				t.Errorf("devices %+v", got.Linux.Devices)
			}
			last := got.Linux.Resources.Devices[len(got.Linux.Resources.Devices)-1]
			if *last.Major != 240 || *last.Minor != 3 || last.Access != "rw" {
				t.Errorf("rule %+v", last)
			}
			if !slices.Contains(destinations(got.Mounts), "/opt/nic/lib") || slices.Contains(destinations(got.Mounts), ViewDir) != strings.Contains(ask, "gpu") {
				t.Errorf("mounts %q", destinations(got.Mounts))
			}
			if want := []string{"NVIDIA_VISIBLE_DEVICES=" + ask, "NIC_VENDOR=example", "PATH=/nic/bin"}; !slices.Equal(got.Process.Env, want) {
				t.Errorf("env %q, want %q", got.Process.Env, want)
			}
			mustInject(t, cfg, dir)
			if again := readSpec(t, dir); !reflect.DeepEqual(got, again) {
				t.Errorf("injected twice: %+v\nonce: %+v", again, got)
			}
		})
	}
}

func TestAnotherVendorsDevicesAreRefused(t *testing.T) {
	for _, tc := range []struct {
		name, text string
		change     func(t *testing.T, file string)
		kind       Kind
		says       []string
	}{
		{"that no specification has", strings.ReplaceAll(foreignCDI, "eth0", "eth1"), nil, Invalid, []string{`"example.com/nic=eth0"`, "no specification in"}},
		{"with a hook of NVIDIA's", strings.ReplaceAll(foreignCDI, "/opt/nic/hook", "/usr/bin/nvidia-ctk"), nil, Denied, []string{"/usr/bin/nvidia-ctk"}},
		{"whose specification others can write", foreignCDI, func(t *testing.T, file string) {
			if err := os.Chmod(file, 0o664); err != nil {
				t.Fatal(err)
			}
		}, Precondition, []string{"nic.json", "0664"}},
		{"whose directory others can write", foreignCDI, func(t *testing.T, file string) {
			if err := os.Chmod(filepath.Dir(file), 0o777); err != nil {
				t.Fatal(err)
			}
		}, Precondition, []string{"nic.json", "0777"}},
		{"of another user's", foreignCDI, func(t *testing.T, file string) {
			if err := os.Chown(file, 1000, 0); err != nil {
				t.Fatal(err)
			}
		}, Precondition, []string{"uid 1000"}},
		{"with network devices", strings.Replace(strings.Replace(foreignCDI, `"deviceNodes"`, `"netDevices": [{"hostInterfaceName": "eth0", "name": "eth1"}], "deviceNodes"`, 1), "0.6.0", "1.1.0", 1), nil, Precondition, []string{"network devices", "--device"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			cfg := hostConfig(t)
			file := foreignDirs(t, cfg, tc.text)
			if tc.change != nil {
				tc.change(t, file)
			}
			_, err := resolve(t, cfg, newSpec("NVIDIA_VISIBLE_DEVICES=example.com/nic=eth0"))
			refused(t, err, tc.kind, tc.says...)
		})
	}
}

func TestAPodGetsNoOtherVendorsDevicesByItsEnvironment(t *testing.T) {
	for _, tc := range []struct {
		mode, namespace string
		given           bool
	}{
		{config.Enforce, "default", false}, {config.Audit, "default", true}, {config.TrustEnv, "default", true}, {config.Enforce, "gpu-operator", true},
	} {
		for _, ask := range []string{"0,example.com/nic=eth0", "example.com/nic=eth0"} {
			cfg := hostConfig(t)
			cfg.Policy.Kubernetes = tc.mode
			foreignDirs(t, cfg, foreignCDI)
			only := !strings.HasPrefix(ask, "0")
			job, err := resolve(t, cfg, pod(t, tc.namespace, []int{0}, "NVIDIA_VISIBLE_DEVICES="+ask))
			if only && !tc.given {
				if !errors.Is(err, ErrNotGranted) {
					t.Errorf("%s: %v", ask, err)
				}
				continue
			}
			if err != nil || (job.foreign != nil) != tc.given {
				t.Errorf("%s in %s, %s: given %v, %v", ask, tc.namespace, tc.mode, job.foreign != nil, err)
			}
			if !only && !tc.given && !strings.Contains(strings.Join(job.Plan.Ignored, "\n"), "example.com/nic=eth0: ") {
				t.Errorf("ignored %q", job.Plan.Ignored)
			}
			if (tc.mode == config.Audit) != strings.Contains(job.Plan.Audit, notForeign) {
				t.Errorf("audit %q", job.Plan.Audit)
			}
		}
	}
}

// realCDI is what nvidia-ctk 1.20.1 wrote for the simulated host, with its paths put
// in: testdata/README.md.
func realCDI(t *testing.T, name string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	found, _ := filepath.Glob(simulated.Root + "/usr/lib/*/libcuda.so." + simulated.Version)
	if len(found) == 0 {
		t.Fatal("the simulated driver has no libcuda")
	}
	text := strings.NewReplacer("DEVROOT", simulated.DevRoot, "ROOT", simulated.Root, "VERSION", simulated.Version,
		"TRIPLE", filepath.Base(filepath.Dir(found[0]))).Replace(string(data))
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	writeFile(t, filepath.Join(dir, "nvidia.yaml"), text, 0o644)
	return dir
}

func TestWhatNVIDIAsToolWroteIsTakenOverToTheLastMount(t *testing.T) {
	for _, tc := range []struct {
		file, device string
		gpus         []int
	}{
		{"nvidia-ctk-1.20.1.yaml", "2", []int{2}},
		{"nvidia-ctk-1.20.1.yaml", "all", []int{0, 1, 2, 3}},
	} {
		t.Run(tc.device, func(t *testing.T) {
			spec := newSpec("NVIDIA_VISIBLE_DEVICES=all")
			before := len(spec.Mounts)
			applyCDI(t, spec, realCDI(t, tc.file), "nvidia.com/gpu="+tc.device)
			theirs := spec.Mounts[before:]
			if len(theirs) < 40 || findHook(spec.Hooks, isCDIHook) == nil {
				t.Fatalf("%d mounts: that is no specification of NVIDIA's", len(theirs))
			}
			cfg := hostConfig(t)
			dir := newBundle(t, spec)
			inj := mustInject(t, cfg, dir)
			got := readSpec(t, dir)
			if h := findHook(got.Hooks, func(specs.Hook) bool { return true }); h != nil {
				t.Errorf("hook %+v is still there", h)
			}
			for _, m := range got.Mounts {
				if slices.ContainsFunc(theirs, func(x specs.Mount) bool { return reflect.DeepEqual(x, m) }) {
					t.Errorf("the mount of %s at %s is still there", m.Source, m.Destination)
				}
			}
			var gpus []int
			for _, g := range inj.Plan.GPUs {
				gpus = append(gpus, g.Index)
			}
			if !slices.Equal(gpus, tc.gpus) {
				t.Errorf("GPUs %v, want %v", gpus, tc.gpus)
			}
			seen := map[string]bool{}
			for _, d := range destinations(got.Mounts) {
				if seen[d] {
					t.Errorf("%s is mounted twice", d)
				}
				seen[d] = true
			}
		})
	}
}

func TestAMemoryLimitInTheEnvironmentIsIgnoredWithAWarning(t *testing.T) {
	job, err := resolve(t, hostConfig(t), newSpec("NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_GPU_MEMORY_LIMIT=1024"))
	if err != nil || !slices.Equal(job.Plan.Ignored, []string{"NVIDIA_GPU_MEMORY_LIMIT: this runtime does not limit GPU memory"}) {
		t.Errorf("ignored %q, %v", job.Plan.Ignored, err)
	}
}

func TestAMemoryLimitIsNotLostWithItsHook(t *testing.T) {
	for env, refuses := range map[string]bool{"NVIDIA_GPU_MEMORY_LIMIT=1024": true, "NVIDIA_GPU_MEMORY_REQUEST=1": true, "NVIDIA_GPU_MEMORY_LIMITS=1": false} {
		spec := newSpec(env)
		applyCDI(t, spec, realCDI(t, "nvidia-ctk-1.20.1.yaml"), "nvidia.com/gpu=0")
		_, err := resolve(t, hostConfig(t), spec)
		if !refuses && err != nil {
			t.Errorf("%s: %v", env, err)
		}
		if refuses {
			refused(t, err, Denied, "limits GPU memory by a hook")
		}
	}
}
