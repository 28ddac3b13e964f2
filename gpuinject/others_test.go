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

// ignored are the classes that a plan ignores.
func ignored(p Plan) string {
	var classes []string
	for _, s := range p.Ignored {
		class, _, _ := strings.Cut(s, ": ")
		classes = append(classes, class)
	}
	return fmt.Sprint(classes)
}

// In a pod other devices need a grant of their own. What is ignored is shown in brackets.
func TestGrantsOfOtherDevices(t *testing.T) {
	const (
		every = "channel0 channel2 nvidia-fs0 nvidia-fs1 gdrdrv uverbs0 uverbs1 rdma_cm nvidia-nvswitchctl nvidia-nvswitch0 nvidia-nvswitch1 []"
		noGDS = "gds gdrcopy mofed nvswitch"
	)
	m := simulated.Majors
	allocated := func(major uint32, minor int) func(*specs.Spec) { return all(inPod(0), withNode(major, minor)) }
	allow := func(classes ...string) func(*config.Config) {
		return func(c *config.Config) { c.Policy.AllowFromEnvironment = classes }
	}
	table{
		env: append(devices("0"), everything...),
		show: func(p Plan) string {
			return fmt.Sprintf("%s %s%s", otherNodes(p), ignored(p), strings.Repeat(" audit", strings.Count(p.Audit, "no device of that kind")))
		},
		rows: []row{
			{name: "outside Kubernetes", want: every},
			{name: "a GPU by its node, environment not accepted", spec: all(listing("imex/1"), withNode(m.GPU, simulated.GPUs[0].Minor)), config: noEnv, want: "channel1 [" + noGDS + "]"},
			{name: "a pod with a GPU", spec: inPod(0), want: " [imex " + noGDS + "]"},
			{name: "a privileged pod", spec: all(inPod(0), privileged), want: every},
			{name: "a trusted namespace", spec: all(inPod(0), inNamespace("gpu-operator")), want: every},
			{name: "trust-env", spec: inPod(0), config: kubernetes(config.TrustEnv), want: every},
			{name: "audit", spec: inPod(0), config: kubernetes(config.Audit), want: every + " audit audit audit audit audit"},
			{name: "a class that the operator allows", spec: inPod(0), config: allow("gdrcopy"), want: "gdrdrv [imex gds mofed nvswitch]"},
			{name: "every class", spec: inPod(0), config: allow("imex", "gds", "gdrcopy", "mofed", "nvswitch"), want: every},
			{name: "a channel that was allocated", spec: allocated(m.IMEX, 2), want: "channel2 [imex 0 " + noGDS + "]"},
			{name: "a channel that was allocated and not asked for", spec: allocated(m.IMEX, 1), want: " [imex " + noGDS + "]"},
			{name: "an adapter that was allocated", spec: allocated(m.Verbs, 193), want: "uverbs1 rdma_cm [imex gds gdrcopy nvswitch]"},
			{name: "a switch that was allocated", spec: allocated(m.Switch, 0), want: "nvidia-nvswitchctl nvidia-nvswitch0 [imex gds gdrcopy mofed]"},
			{name: "an nvidia-fs node that was allocated", spec: allocated(m.FS, 0), want: "nvidia-fs0 nvidia-fs1 [imex gdrcopy mofed nvswitch]"},
			{name: "mounted channels", spec: all(inPod(0), listing("imex/1")), want: "channel1 [" + noGDS + "]"},
			{name: "all mounted channels", spec: all(inPod(0), listing("imex/all")), want: "channel0 channel1 channel2 [" + noGDS + "]"},
			{name: "mounted channels, mounts not accepted", spec: all(inPod(0), listing("imex/1")), config: noMounts, want: " [imex " + noGDS + "]"},
		},
	}.run(t)
}

func TestMissingChannelNode(t *testing.T) {
	table{env: devices("0"), show: func(p Plan) string { return ignored(p) }, rows: []row{
		{name: "of this host", env: []string{"NVIDIA_IMEX_CHANNELS=0,7"}, kind: Precondition,
			want: "refused: nvidia-caps-imex-channels/channel7 is missing: run \"nvidia-shimctl prepare --imex-channels=7\""},
		{name: "in a pod", env: []string{"NVIDIA_IMEX_CHANNELS=0,7"}, spec: inPod(0), want: "[imex]"},
		{name: "of any host", env: []string{"NVIDIA_IMEX_CHANNELS=9999"}, want: `refused: NVIDIA_IMEX_CHANNELS="9999"`, kind: Invalid},
	}}.run(t)
}

// No grant brings a channel that the operator has ignored: not the environment outside
// Kubernetes, not a mount, not a node of the specification.
func TestIgnoredChannels(t *testing.T) {
	ignore := func(c *config.Config) {
		c.Policy.IgnoreIMEXChannels, c.Policy.AllowFromEnvironment = true, []string{"imex", "gdrcopy"}
	}
	mount := listing("imex/2")
	const want = "gdrdrv[] [imex: policy.ignore-imex-channels is true]"
	table{
		env:  []string{"NVIDIA_VISIBLE_DEVICES=0,nvidia.com/imex-channel=1", "NVIDIA_IMEX_CHANNELS=0,7", "NVIDIA_GDRCOPY=enabled"},
		show: func(p Plan) string { return otherNodes(p) + fmt.Sprint(p.IMEX, p.Ignored) },
		rows: []row{
			{name: "outside Kubernetes", spec: mount, config: ignore, want: want},
			{name: "a pod", spec: all(inPod(0), withNode(simulated.Majors.IMEX, 1), mount), config: ignore, want: want},
			{name: "a trusted pod", spec: all(inPod(), inNamespace("kube-system"), mount), config: ignore, want: want},
		},
	}.run(t)
}

// What GDS brings besides nodes.
func TestGDSFiles(t *testing.T) {
	files := func(p Plan) string {
		var list []string
		for _, m := range p.Mounts {
			if m.Destination == udevDir || m.Destination == cufileJSON {
				list = append(list, fmt.Sprintf("%s at %s, read-only: %v", m.Source, m.Destination, slices.Contains(m.Options, "ro")))
			}
		}
		slices.Sort(list)
		return strings.Join(list, "; ")
	}
	settings := fmt.Sprintf("%s at %s, read-only: true", simulated.Root+cufileJSON, cufileJSON)
	udev := fmt.Sprintf("%s at %s, read-only: true", simulated.DevRoot+udevDir, udevDir)
	both := []string{settings, udev}
	slices.Sort(both)
	gds := []string{"NVIDIA_GDS=enabled"}
	table{env: devices("0"), show: files, rows: []row{
		{name: "with it", env: gds, want: strings.Join(both, "; ")},
		{name: "not without it", env: []string{"NVIDIA_MOFED=enabled"}},
		{name: "not where it is not granted", env: gds, spec: inPod(0)},
		{name: "not over a volume of the container's", env: gds, spec: mounting("/srv", cufileJSON), want: udev},
	}}.run(t)
	t.Run("not where they are not root's, and not where the host has none", func(t *testing.T) {
		empty := t.TempDir() // whose /run leads out of it
		for _, name := range []string{"dev", "run"} {
			if err := os.Symlink(filepath.Join(simulated.DevRoot, name), filepath.Join(empty, name)); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.Chmod(simulated.Root+cufileJSON, 0o666); err != nil {
			t.Fatal(err)
		}
		defer func() { _ = os.Chmod(simulated.Root+cufileJSON, 0o644) }()
		cfg := hostConfig(t)
		cfg.Host.DevRoot = empty
		plan, err := resolve(t, cfg, newSpec(append(gds, devices("0")...)...))
		if err != nil || files(plan) != "" || !strings.Contains(strings.Join(plan.Notes, "\n"), "can be written by others") {
			t.Errorf("%s, notes %q, %v", files(plan), plan.Notes, err)
		}
	})
}
