package gpuinject

import (
	"encoding/json"
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
			if n := strings.Count(strings.Join(given(t, dir), " ")+" ", "/usr/bin/nvidia-smi "); n != 1 {
				t.Errorf("nvidia-smi is given %d times: %q", n, given(t, dir))
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
