package gpuinject

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"tags.cncf.io/container-device-interface/pkg/cdi"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/request"
)

// applyCDI does to spec what containerd and docker do: the CDI project's own library,
// rules that allow mknod included.
func applyCDI(t testing.TB, spec *specs.Spec, dir string, names ...string) {
	t.Helper()
	cache, err := cdi.NewCache(cdi.WithSpecDirs(dir), cdi.WithAutoRefresh(false))
	if err == nil {
		_, err = cache.InjectDevices(spec, names...)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// nvidiaMount are the options of mounts in specifications of nvidia-ctk 1.18 and later.
var nvidiaMount = []string{"ro", "nosuid", "nodev", "rbind", "rprivate"}

func TestCDIEditsAreTakenOver(t *testing.T) {
	for device, gpus := range map[string][]int{"2": {2}, "all": {0, 1, 2, 3}} {
		t.Run(device, func(t *testing.T) {
			spec := newSpec("PATH=/bin", "NVIDIA_VISIBLE_DEVICES=all")
			before := len(spec.Mounts)
			applyCDI(t, spec, realCDI(t), "nvidia.com/gpu="+device)
			lib := filepath.Dir(spec.Mounts[slices.IndexFunc(spec.Mounts, func(m specs.Mount) bool { return strings.Contains(m.Destination, "/libcuda.so.") })].Destination)
			spec.Mounts = append(spec.Mounts, // a file of a driver that is gone, in a specification that was not made again
				specs.Mount{Source: simulated.Root + lib + "/libnvidia-old.so.470.1.2", Destination: lib + "/libnvidia-old.so.470.1.2", Type: "bind", Options: nvidiaMount})
			theirs := slices.Clone(spec.Mounts[before:])
			if len(theirs) < 40 {
				t.Fatalf("%d mounts: that is no specification of NVIDIA's", len(theirs))
			}
			// What a user adds, and other vendors.
			users := []specs.Mount{
				{Source: simulated.Root + "/usr/bin/nvidia-smi", Destination: "/opt/smi", Type: "bind", Options: nvidiaMount},
				{Source: simulated.Root + "/usr/bin/nvidia-debugdump", Destination: "/opt/dump", Type: "bind", Options: []string{"rbind", "rprivate", "ro"}},
			}
			spec.Mounts = append(spec.Mounts, users...)
			foreign := specs.Hook{Path: "/opt/other/hook", Args: []string{"hook", "nvidia"}}
			spec.Hooks.CreateContainer = slices.Insert(spec.Hooks.CreateContainer, 1, foreign)
			major, minor := int64(240), int64(7)
			rule := specs.LinuxDeviceCgroup{Allow: true, Type: "c", Major: &major, Minor: &minor, Access: "rwm"}
			spec.Linux.Devices = append(spec.Linux.Devices, specs.LinuxDevice{Path: "/dev/foreign", Type: "c", Major: major, Minor: minor})
			spec.Linux.Resources.Devices = append(spec.Linux.Resources.Devices, rule)

			dir := newBundle(t, spec)
			plan := mustInject(t, hostConfig(t), dir).Plan
			got := readSpec(t, dir)
			if indices := gpuIndices(plan); !slices.Equal(indices, gpus) || !strings.Contains(plan.Grant, "taken over from CDI: "+simulated.GPUs[gpus[0]].UUID) || len(plan.Capabilities) != 7 {
				t.Errorf("GPUs %v, grant %q, capabilities %q", indices, plan.Grant, plan.Capabilities)
			}
			if hooks := request.Hooks(*got.Hooks); len(hooks) != 1 || !reflect.DeepEqual(hooks[0], foreign) || len(plan.RemovedHooks) < 2 {
				t.Errorf("hooks %+v, removed %q", hooks, plan.RemovedHooks)
			}
			for _, r := range got.Linux.Resources.Devices[1:] {
				if isForeign := *r.Major == 240; isForeign != (r.Access == "rwm") {
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
				if has := numbers[fmt.Sprint(simulated.Majors.GPU, ":", g.Minor)] == 1; has != slices.Contains(gpus, g.Index) || numbers["240:7"] != 1 {
					t.Errorf("the node of GPU %d: %v in %v", g.Index, has, numbers)
				}
			}
			seen := map[string]bool{}
			for _, m := range got.Mounts {
				if is := func(x specs.Mount) bool { return reflect.DeepEqual(x, m) }; slices.ContainsFunc(theirs, is) || seen[m.Destination] {
					t.Errorf("the mount of %s at %s is still there or there twice", m.Source, m.Destination)
				}
				seen[m.Destination] = true
			}
			if !seen["/opt/smi"] || !seen["/opt/dump"] {
				t.Errorf("a user's mount is gone: %v", destinations(got.Mounts))
			}
			c, err := Examine(dir, loading(hostConfig(t)))
			if c.Asks && c.Said.EditedByCDI || err != nil {
				t.Errorf("without its hooks it still counts as edited: %+v, %v", c, err)
			}
		})
	}
}

func TestCapabilitiesWithCDIEdits(t *testing.T) {
	for env, want := range map[string]string{
		"NVIDIA_DRIVER_CAPABILITIES=utility": "utility",
		"NVIDIA_DRIVER_CAPABILITIES=":        "compat32,compute,display,graphics,ngx,utility,video",
		"A=b":                                "compat32,compute,display,graphics,ngx,utility,video",
	} {
		spec := newSpec(env)
		applyCDI(t, spec, realCDI(t), "nvidia.com/gpu=0")
		plan, err := resolve(t, hostConfig(t), spec)
		if err != nil || strings.Join(plan.Capabilities, ",") != want {
			t.Errorf("%s: %v, %v", env, plan.Capabilities, err)
		}
	}
}

// What is taken over is no more than the specification has.
func TestWhatIsTakenOver(t *testing.T) {
	m := simulated.Majors
	edited := func(change func(*specs.Spec), nodes []specs.LinuxDevice, names ...string) func(*specs.Spec) {
		return func(s *specs.Spec) {
			applyCDI(t, s, realCDI(t), names...)
			s.Linux.Devices = append(s.Linux.Devices, nodes...)
			change(s)
		}
	}
	node := func(major uint32, minor int64) specs.LinuxDevice {
		return specs.LinuxDevice{Path: fmt.Sprintf("/dev/plugin%d", major), Type: "c", Major: int64(major), Minor: minor}
	}
	nothing, gpu1 := func(*specs.Spec) {}, "nvidia.com/gpu=1"
	contractSection{
		show: func(p Plan) string { return fmt.Sprintf("%s%v%v", showGPUs(p), p.Classes, p.IMEX) },
		cases: []contractCase{
			{name: "two of four", spec: edited(nothing, nil, "nvidia.com/gpu=0", "nvidia.com/gpu=3"), here: "GPUs 0, 3[][]"},
			{name: "an image that wants more", env: append(devices("all"), "NVIDIA_GDS=enabled", "NVIDIA_IMEX_CHANNELS=0"), spec: edited(nothing, nil, gpu1), here: "GPU 1[][]"},
			{name: "in a pod", spec: edited(inPod(), nil, gpu1), here: "GPU 1[][]"},
			{name: "a channel and an nvidia-fs node", spec: edited(nothing, []specs.LinuxDevice{node(m.IMEX, 2), node(m.FS, 0)}, gpu1), here: "GPU 1[imex gds][2]"},
			{name: "an RDMA adapter", spec: edited(nothing, []specs.LinuxDevice{node(m.Verbs, 192)}, gpu1), here: "GPU 1[][]"},
		},
	}.run(t)
}

func TestRefusedCDIHooks(t *testing.T) {
	cfg := hostConfig(t)
	cfg.Policy.ForeignHooks = config.Refuse
	spec := newSpec()
	applyCDI(t, spec, realCDI(t), "nvidia.com/gpu=0")
	_, err := resolve(t, cfg, spec)
	refused(t, err, Denied, "nvidia-c", "refuse")
}

// What docker --gpus '"device=1"' makes (moby daemon/nvidia_linux.go).
func TestDockerGPUsFlag(t *testing.T) {
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
func realCDI(t testing.TB) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", "nvidia-ctk-1.20.1.yaml"))
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
