package gpuinject

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/request"
)

// everything asks for all that there is besides GPUs.
var everything = []string{
	"NVIDIA_IMEX_CHANNELS=0,2", "NVIDIA_GDS=enabled", "NVIDIA_GDRCOPY=enabled", "NVIDIA_MOFED=enabled", "NVIDIA_NVSWITCH=enabled",
}

// otherNodes are the nodes of a plan that are no GPU's, below /dev.
func otherNodes(p Plan) string {
	var names []string
	for _, d := range p.Devices {
		name := strings.TrimPrefix(d.Path, "/dev/")
		gpus := slices.ContainsFunc(p.GPUs, func(g PlanGPU) bool { return name == fmt.Sprintf("nvidia%d", g.Minor) })
		if !gpus && !slices.Contains([]string{"nvidiactl", "nvidia-uvm", "nvidia-uvm-tools"}, name) {
			names = append(names, strings.TrimPrefix(strings.TrimPrefix(name, "nvidia-caps-imex-channels/"), "infiniband/"))
		}
	}
	return strings.Join(names, " ")
}

func TestOtherDevicesNeedAGrantOfTheirOwnInAPod(t *testing.T) {
	const all = "channel0 channel2 nvidia-fs0 nvidia-fs1 gdrdrv uverbs0 uverbs1 rdma_cm nvidia-nvswitchctl nvidia-nvswitch0 nvidia-nvswitch1"
	m := simulated.Majors
	node := func(major uint32, minor int64) specs.LinuxDevice {
		return specs.LinuxDevice{Path: fmt.Sprintf("/dev/plugin-%d-%d", major, minor), Type: "c", Major: int64(major), Minor: minor}
	}
	for _, tc := range []struct {
		name       string
		outside    bool // of Kubernetes
		namespace  string
		privileged bool
		change     func(*config.Policy)
		nodes      []specs.LinuxDevice
		mounted    []string
		want       string
		ignored    string // classes
		audit      bool
	}{
		{name: "outside Kubernetes the environment grants", outside: true, want: all},
		{name: "not to the unprivileged, if the operator says so", outside: true, mounted: []string{"1"}, want: "channel1", ignored: "gds gdrcopy mofed nvswitch",
			change: func(p *config.Policy) { p.AcceptEnvWhenUnprivileged = false }},
		{name: "a pod gets its GPU and nothing else", ignored: "imex gds gdrcopy mofed nvswitch"},
		{name: "a privileged pod's environment grants", privileged: true, want: all},
		{name: "a trusted namespace's environment grants", namespace: "gpu-operator", want: all},
		{name: "trust-env trusts", want: all, change: func(p *config.Policy) { p.Kubernetes = config.TrustEnv }},
		{name: "audit gives and says what enforce would not", want: all, audit: true, change: func(p *config.Policy) { p.Kubernetes = config.Audit }},
		{name: "a class that the operator allows", want: "gdrdrv", ignored: "imex gds mofed nvswitch",
			change: func(p *config.Policy) { p.AllowFromEnvironment = []string{"gdrcopy"} }},
		{name: "every class", want: all, change: func(p *config.Policy) {
			p.AllowFromEnvironment = []string{"imex", "gds", "gdrcopy", "mofed", "nvswitch"}
		}},
		{name: "a channel that was allocated", nodes: []specs.LinuxDevice{node(m.IMEX, 2)}, want: "channel2", ignored: "imex 0, gds gdrcopy mofed nvswitch"},
		{name: "a channel that was allocated and not asked for", nodes: []specs.LinuxDevice{node(m.IMEX, 1)}, ignored: "imex gds gdrcopy mofed nvswitch"},
		{name: "an adapter that was allocated", nodes: []specs.LinuxDevice{node(m.Verbs, 193)}, want: "uverbs1 rdma_cm", ignored: "imex gds gdrcopy nvswitch"},
		{name: "a switch that was allocated", nodes: []specs.LinuxDevice{node(m.Switch, 0)}, want: "nvidia-nvswitchctl nvidia-nvswitch0", ignored: "imex gds gdrcopy mofed"},
		{name: "an nvidia-fs node that was allocated", nodes: []specs.LinuxDevice{node(m.FS, 0)}, want: "nvidia-fs0 nvidia-fs1", ignored: "imex gdrcopy mofed nvswitch"},
		{name: "mounted channels, whatever the environment says", mounted: []string{"1"}, want: "channel1", ignored: "gds gdrcopy mofed nvswitch"},
		{name: "all mounted channels", mounted: []string{"all"}, want: "channel0 channel1 channel2", ignored: "gds gdrcopy mofed nvswitch"},
		{name: "mounted channels where mounts are not accepted", mounted: []string{"1"}, ignored: "imex gds gdrcopy mofed nvswitch",
			change: func(p *config.Policy) { p.AcceptVolumeMounts = false }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			cfg := hostConfig(t)
			if tc.change != nil {
				tc.change(&cfg.Policy)
			}
			env := append([]string{"NVIDIA_VISIBLE_DEVICES=0"}, everything...)
			namespace := tc.namespace
			if namespace == "" {
				namespace = "default"
			}
			spec := pod(t, namespace, []int{0}, env...)
			if tc.outside {
				delete(spec.Annotations, "io.kubernetes.cri.container-type")
			}
			if tc.privileged {
				spec.Process.Capabilities.Bounding, spec.Linux.MaskedPaths = []string{"CAP_SYS_ADMIN"}, nil
			}
			spec.Linux.Devices = append(spec.Linux.Devices, tc.nodes...)
			for _, id := range tc.mounted {
				spec.Mounts = append(spec.Mounts, specs.Mount{Source: "/dev/null", Destination: request.DeviceListDir + "/imex/" + id, Type: "bind"})
			}
			job, err := resolve(t, cfg, spec)
			if err != nil {
				t.Fatal(err)
			}
			if got := otherNodes(job.Plan); got != tc.want || len(job.Plan.GPUs) != 1 {
				t.Errorf("GPUs %v and nodes %q, want %q", job.Plan.GPUs, got, tc.want)
			}
			var ignored []string
			for _, s := range job.Plan.Ignored {
				class, reason, _ := strings.Cut(s, ": ")
				if reason == "" {
					t.Errorf("%q gives no reason", s)
				}
				if strings.Contains(class, " ") {
					class += ","
				}
				ignored = append(ignored, class)
			}
			if got := strings.Join(ignored, " "); got != tc.ignored {
				t.Errorf("ignored %q, want %q", got, tc.ignored)
			}
			if (strings.Count(job.Plan.Audit, "no device of that kind") == 5) != tc.audit {
				t.Errorf("audit %q", job.Plan.Audit)
			}
			if got := slices.Contains(job.Plan.Classes, "gds"); got != strings.Contains(tc.want, "nvidia-fs0") {
				t.Errorf("classes %q", job.Plan.Classes)
			}
		})
	}
}

func TestAChannelWithoutANodeFailsOnlyWhoMayHaveIt(t *testing.T) {
	ask := []string{"NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_IMEX_CHANNELS=0,7"}
	_, err := resolve(t, hostConfig(t), newSpec(ask...))
	refused(t, err, Precondition, "nvidia-caps-imex-channels/channel7 is missing", "nvidia-shimctl prepare --imex-channels=7")
	job, err := resolve(t, hostConfig(t), pod(t, "default", []int{0}, ask...))
	if err != nil || len(job.Plan.Ignored) != 1 || len(job.Plan.IMEX) != 0 {
		t.Errorf("%+v, %v", job.Plan, err)
	}
	_, err = ExamineSpec(newSpec("NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_IMEX_CHANNELS=9999"), loading(hostConfig(t)))
	refused(t, err, Invalid, "NVIDIA_IMEX_CHANNELS", `"9999"`)
}

func TestAnImageWithoutAGPURequestGetsNoOtherDevices(t *testing.T) {
	spec := newSpec(everything...)
	spec.Mounts = append(spec.Mounts, specs.Mount{Source: "/dev/null", Destination: request.DeviceListDir + "/imex/0", Type: "bind"})
	if job, err := ExamineSpec(spec, loading(hostConfig(t))); job != nil || err != nil {
		t.Errorf("%+v, %v", job, err)
	}
	job, err := resolve(t, hostConfig(t), newSpec(append(everything, "NVIDIA_VISIBLE_DEVICES=none")...))
	if err != nil || otherNodes(job.Plan) != "" {
		t.Errorf("%+v, %v", job.Plan.Devices, err)
	}
}

// No grant brings a channel that the operator has ignored: not the environment outside
// Kubernetes, not a mount, not a node of the specification.
func TestNobodyGetsAnIgnoredChannel(t *testing.T) {
	ask := []string{"NVIDIA_VISIBLE_DEVICES=0,nvidia.com/imex-channel=1", "NVIDIA_IMEX_CHANNELS=0,7", "NVIDIA_GDRCOPY=enabled"}
	given := pod(t, "default", []int{0}, ask...)
	given.Linux.Devices = append(given.Linux.Devices, specs.LinuxDevice{Path: "/dev/c", Type: "c", Major: int64(simulated.Majors.IMEX), Minor: 1})
	for name, spec := range map[string]*specs.Spec{"outside": newSpec(ask...), "a pod": given, "a trusted pod": pod(t, "kube-system", nil, ask...)} {
		spec.Mounts = append(spec.Mounts, specs.Mount{Source: "/dev/null", Destination: request.DeviceListDir + "/imex/2", Type: "bind"})
		cfg := hostConfig(t)
		cfg.Policy.IgnoreIMEXChannels, cfg.Policy.AllowFromEnvironment = true, []string{"imex", "gdrcopy"}
		job, err := resolve(t, cfg, spec)
		if err != nil {
			t.Fatal(name, err)
		}
		if got := otherNodes(job.Plan); got != "gdrdrv" || len(job.Plan.IMEX) != 0 || !slices.Equal(job.Plan.Ignored, []string{"imex: policy.ignore-imex-channels is true"}) {
			t.Errorf("%s: nodes %q, channels %v, ignored %q", name, got, job.Plan.IMEX, job.Plan.Ignored)
		}
	}
}

// gdsMounts are the destinations of what GDS brings besides nodes, with their sources.
func gdsMounts(mounts []PlanMount) map[string]string {
	got := map[string]string{}
	for _, m := range mounts {
		if m.Destination == udevDir || m.Destination == cufileJSON {
			got[m.Destination] = m.Source
			if !slices.Contains(m.Options, "ro") {
				got[m.Destination] += " writable"
			}
		}
	}
	return got
}

func TestGDSBringsTheFilesThatItReads(t *testing.T) {
	ask := []string{"NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_GDS=enabled"}
	inj := mustInject(t, hostConfig(t), newBundle(t, newSpec(ask...)))
	want := fmt.Sprint(map[string]string{udevDir: simulated.DevRoot + udevDir, cufileJSON: simulated.Root + cufileJSON})
	if got := fmt.Sprint(gdsMounts(inj.Plan.Mounts)); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	t.Run("not without it", func(t *testing.T) {
		inj := mustInject(t, hostConfig(t), newBundle(t, newSpec(ask[0], "NVIDIA_MOFED=enabled")))
		if got := gdsMounts(inj.Plan.Mounts); len(got) != 0 {
			t.Errorf("got %v", got)
		}
	})
	t.Run("not where it is not granted", func(t *testing.T) {
		inj := mustInject(t, hostConfig(t), newBundle(t, pod(t, "default", []int{0}, ask...)))
		if got := gdsMounts(inj.Plan.Mounts); len(got) != 0 {
			t.Errorf("got %v", got)
		}
	})
	t.Run("not over a volume of the container's", func(t *testing.T) {
		spec := newSpec(ask...)
		spec.Mounts = append(spec.Mounts, specs.Mount{Source: "/srv", Destination: cufileJSON, Type: "bind"})
		inj := mustInject(t, hostConfig(t), newBundle(t, spec))
		if got := gdsMounts(inj.Plan.Mounts); len(got) != 1 || got[udevDir] == "" {
			t.Errorf("got %v", got)
		}
	})
	t.Run("not where they are not root's, and not where the host has none", func(t *testing.T) {
		cfg := hostConfig(t)
		empty := t.TempDir()
		for _, name := range []string{"dev", "run"} {
			if err := os.Symlink(filepath.Join(simulated.DevRoot, name), filepath.Join(empty, name)); err != nil {
				t.Fatal(err)
			}
		}
		cfg.Host.DevRoot = empty // whose /run leads out of it
		if err := os.Chmod(simulated.Root+cufileJSON, 0o666); err != nil {
			t.Fatal(err)
		}
		defer func() { _ = os.Chmod(simulated.Root+cufileJSON, 0o644) }()
		inj := mustInject(t, cfg, newBundle(t, newSpec(ask...)))
		if got := gdsMounts(inj.Plan.Mounts); len(got) != 0 {
			t.Errorf("got %v", got)
		}
		if !strings.Contains(strings.Join(inj.Plan.Notes, "\n"), "can be written by everybody") {
			t.Errorf("notes %q", inj.Plan.Notes)
		}
	})
}
