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

// In a pod other devices need a grant of their own. What is ignored is shown in brackets.
func TestGrantsOfOtherDevices(t *testing.T) {
	const (
		all   = "channel0 channel2 nvidia-fs0 nvidia-fs1 gdrdrv uverbs0 uverbs1 rdma_cm nvidia-nvswitchctl nvidia-nvswitch0 nvidia-nvswitch1 []"
		noGDS = "gds gdrcopy mofed nvswitch"
	)
	m := simulated.Majors
	given := func(major uint32, minor int64) func(*specs.Spec) {
		return func(s *specs.Spec) {
			inPod(0)(s)
			s.Linux.Devices = append(s.Linux.Devices, specs.LinuxDevice{Path: "/dev/plugin", Type: "c", Major: int64(major), Minor: minor})
		}
	}
	trusted := func(s *specs.Spec) {
		inPod(0)(s)
		s.Annotations["io.kubernetes.cri.sandbox-namespace"] = "gpu-operator"
	}
	mode := func(mode string) func(*config.Config) { return func(c *config.Config) { c.Policy.Kubernetes = mode } }
	allow := func(classes ...string) func(*config.Config) {
		return func(c *config.Config) { c.Policy.AllowFromEnvironment = classes }
	}
	contractSection{
		env: append(devices("0"), everything...),
		show: func(p Plan) string {
			var ignored []string
			for _, s := range p.Ignored {
				class, _, _ := strings.Cut(s, ": ")
				ignored = append(ignored, class)
			}
			return fmt.Sprintf("%s %v%s", otherNodes(p), ignored, strings.Repeat(" audit", strings.Count(p.Audit, "no device of that kind")))
		},
		cases: []contractCase{
			{name: "outside Kubernetes", here: all},
			{name: "a GPU by its node, environment not accepted", mounts: []string{"imex/1"}, spec: func(s *specs.Spec) { inPod(0)(s); delete(s.Annotations, "io.kubernetes.cri.container-type") },
				config: func(c *config.Config) { c.Policy.AcceptEnvWhenUnprivileged = false }, here: "channel1 [" + noGDS + "]"},
			{name: "a pod with a GPU", spec: inPod(0), here: " [imex " + noGDS + "]"},
			{name: "a privileged pod", spec: func(s *specs.Spec) { inPod(0)(s); privileged(s) }, here: all},
			{name: "a trusted namespace", spec: trusted, here: all},
			{name: "trust-env", spec: inPod(0), config: mode(config.TrustEnv), here: all},
			{name: "audit", spec: inPod(0), config: mode(config.Audit), here: all + " audit audit audit audit audit"},
			{name: "a class that the operator allows", spec: inPod(0), config: allow("gdrcopy"), here: "gdrdrv [imex gds mofed nvswitch]"},
			{name: "every class", spec: inPod(0), config: allow("imex", "gds", "gdrcopy", "mofed", "nvswitch"), here: all},
			{name: "a channel that was allocated", spec: given(m.IMEX, 2), here: "channel2 [imex 0 " + noGDS + "]"},
			{name: "a channel that was allocated and not asked for", spec: given(m.IMEX, 1), here: " [imex " + noGDS + "]"},
			{name: "an adapter that was allocated", spec: given(m.Verbs, 193), here: "uverbs1 rdma_cm [imex gds gdrcopy nvswitch]"},
			{name: "a switch that was allocated", spec: given(m.Switch, 0), here: "nvidia-nvswitchctl nvidia-nvswitch0 [imex gds gdrcopy mofed]"},
			{name: "an nvidia-fs node that was allocated", spec: given(m.FS, 0), here: "nvidia-fs0 nvidia-fs1 [imex gdrcopy mofed nvswitch]"},
			{name: "mounted channels", mounts: []string{"imex/1"}, spec: inPod(0), here: "channel1 [" + noGDS + "]"},
			{name: "all mounted channels", mounts: []string{"imex/all"}, spec: inPod(0), here: "channel0 channel1 channel2 [" + noGDS + "]"},
			{name: "mounted channels, mounts not accepted", mounts: []string{"imex/1"}, spec: inPod(0), config: func(c *config.Config) { c.Policy.AcceptVolumeMounts = false }, here: " [imex " + noGDS + "]"},
		},
	}.run(t)
}

func TestMissingChannelNode(t *testing.T) {
	ask := []string{"NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_IMEX_CHANNELS=0,7"}
	_, err := resolve(t, hostConfig(t), newSpec(ask...))
	refused(t, err, Precondition, "nvidia-caps-imex-channels/channel7 is missing", "nvidia-shimctl prepare --imex-channels=7")
	plan, err := resolve(t, hostConfig(t), pod(t, "default", []int{0}, ask...))
	if err != nil || len(plan.Ignored) != 1 || len(plan.IMEX) != 0 {
		t.Errorf("%+v, %v", plan, err)
	}
	_, err = ExamineSpec(newSpec("NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_IMEX_CHANNELS=9999"), loading(hostConfig(t)))
	refused(t, err, Invalid, "NVIDIA_IMEX_CHANNELS", `"9999"`)
}

// No grant brings a channel that the operator has ignored: not the environment outside
// Kubernetes, not a mount, not a node of the specification.
func TestIgnoredChannels(t *testing.T) {
	ask := []string{"NVIDIA_VISIBLE_DEVICES=0,nvidia.com/imex-channel=1", "NVIDIA_IMEX_CHANNELS=0,7", "NVIDIA_GDRCOPY=enabled"}
	given := pod(t, "default", []int{0}, ask...)
	given.Linux.Devices = append(given.Linux.Devices, specs.LinuxDevice{Path: "/dev/c", Type: "c", Major: int64(simulated.Majors.IMEX), Minor: 1})
	for name, spec := range map[string]*specs.Spec{"outside": newSpec(ask...), "a pod": given, "a trusted pod": pod(t, "kube-system", nil, ask...)} {
		spec.Mounts = append(spec.Mounts, specs.Mount{Source: "/dev/null", Destination: request.DeviceListDir + "/imex/2", Type: "bind"})
		cfg := hostConfig(t)
		cfg.Policy.IgnoreIMEXChannels, cfg.Policy.AllowFromEnvironment = true, []string{"imex", "gdrcopy"}
		plan, err := resolve(t, cfg, spec)
		if err != nil {
			t.Fatal(name, err)
		}
		if got := otherNodes(plan); got != "gdrdrv" || len(plan.IMEX) != 0 || !slices.Equal(plan.Ignored, []string{"imex: policy.ignore-imex-channels is true"}) {
			t.Errorf("%s: nodes %q, channels %v, ignored %q", name, got, plan.IMEX, plan.Ignored)
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

func TestGDSFiles(t *testing.T) {
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
		if !strings.Contains(strings.Join(inj.Plan.Notes, "\n"), "can be written by others") {
			t.Errorf("notes %q", inj.Plan.Notes)
		}
	})
}
