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
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/verdict"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simdriver/sim"
)

// Annotations grant outside Kubernetes. In a pod they select among the allocated GPUs.
func TestAnnotations(t *testing.T) {
	cdi := func(name string) func(*specs.Spec) { return annotated("cdi.k8s.io/x", name) }
	gpu1, gpu3 := cdi("nvidia.com/gpu=1"), cdi("nvidia.com/gpu=3")
	other := cdi("nvidia.com/gpu=0,nvidia.com/gdrcopy=all,nvidia.com/imex-channel=1")
	table{show: showAsked, rows: []row{
		{name: "environment not accepted", spec: gpu3, config: noEnv, want: "GPU 3"},
		{name: "one of those allocated", spec: all(gpu3, inPod(1, 3)), want: "GPU 3"},
		{name: "all of those allocated", spec: all(cdi("nvidia.com/gpu=all"), inPod(1, 2)), want: "GPUs 1, 2"},
		{name: "another one, and all by the environment", env: devices("all"), spec: all(gpu3, inPod(1)), want: "GPU 1"},
		{name: "another one, and a mistake in the environment", env: devices("nvidia.com/toaster=0"), spec: all(gpu3, inPod(1)), want: "refused: nvidia.com/toaster=0"},
		{name: "an allocated one, and all by the environment", env: devices("all"), spec: all(gpu1, inPod(1, 2)), want: "GPU 1"},
		{name: "an allocated one, and a mistake in the environment", env: devices("nvidia.com/toaster=0"), spec: all(gpu1, inPod(1, 2)), want: "GPU 1"},
		{name: "an allocated one, and mounts that are not accepted", env: devices("/var/run/nvidia-container-devices"), config: noMounts, spec: all(gpu1, inPod(1, 2)), want: "GPU 1"},
		{name: "nothing allocated", spec: all(gpu3, inPod()), want: "starts without a GPU"},
		{name: "a GPU that no host has", spec: all(cdi("nvidia.com/gpu=77"), inPod(1)), want: "starts without a GPU"},
		{name: "a mistake in a pod", spec: all(cdi("k8s.gpu.nvidia.com/claim=abc"), inPod()), want: "left alone"},
		{name: "a mistake elsewhere", spec: cdi("nvidia.com/toaster=0"), want: "refused: annotation \"cdi.k8s.io/x\": \"nvidia.com/toaster=0\""},
		{name: "a host without a driver", spec: all(gpu1, inPod()), config: func(c *config.Config) { c.Host.ProcRoot = t.TempDir() }, want: "starts without a GPU"},
		{name: "other devices", spec: other, config: noEnv, want: "GPU 0, `channel1`, `gdrdrv`"},
		{name: "other devices in a pod", config: noEnv, spec: all(other, inPod(0)), want: "GPU 0"},
	}}.run(t)
}

// In Kubernetes the environment selects and never grants.
func TestPods(t *testing.T) {
	uuid := func(i int) string { return simulated.GPUs[i].UUID }
	// A pod must not be able to find out which GPUs exist by asking for them.
	const denied = "refused: is not this container's: in the container's specification: "
	table{
		show: withAudit(showGPUs),
		rows: []row{
			{name: "none, nothing allocated", env: devices("none"), spec: inPod(), want: "starts without a GPU"},
			{name: "one, nothing allocated", env: devices("0"), spec: inPod(), want: "refused: is not this container's: no GPU was allocated"},
			{name: "the allocated one by index", env: devices("2"), spec: inPod(2), want: "GPU 2"},
			{name: "all", env: devices("all"), spec: inPod(2), want: "GPU 2"},
			{name: "another one by UUID", env: devices(uuid(0)), spec: inPod(2), want: "refused: GPU \"" + uuid(0) + "\" is not this container's: in the container's specification: " + uuid(2)},
			{name: "an unknown one by UUID", env: devices("GPU-00000000"), spec: inPod(2), want: "refused: GPU \"GPU-00000000\" is not this container's: in the container's specification: " + uuid(2)},
			{name: "the allocated one and another", env: devices("2,0"), spec: inPod(2), want: denied + uuid(2)},
			{name: "one that a mount names, mounts not accepted", env: devices("0"), config: noMounts, spec: all(inPod(2), listing(uuid(0))), want: denied + uuid(2)},
			{name: "one that no host has", env: devices("99"), spec: inPod(2), want: denied + uuid(2)},
			{name: "privileged", env: devices("1"), spec: all(inPod(), privileged), want: "GPU 1"},
			{name: "audit, the allocated one", env: devices("2"), spec: inPod(2), config: kubernetes(config.Audit), want: "GPU 2"},
			{name: "audit, another one", env: devices("1"), spec: inPod(2), config: kubernetes(config.Audit),
				want: "GPU 1; kubernetes = \"enforce\" would have refused this: in the container's specification: " + uuid(2)},
		},
	}.run(t)
}

// everything asks for every device class besides GPUs.
var everything = []string{
	"NVIDIA_IMEX_CHANNELS=0,2", "NVIDIA_GDS=enabled", "NVIDIA_GDRCOPY=enabled", "NVIDIA_MOFED=enabled", "NVIDIA_NVSWITCH=enabled",
}

// furtherNodes returns the nodes of a plan besides /dev/nvidiactl and those of GPUs.
func furtherNodes(p Plan) []string {
	var nodes []string
	for _, d := range p.Devices {
		isGPU := func(g PlanGPU) bool { return d.Path == fmt.Sprintf("/dev/nvidia%d", g.Minor) }
		if d.Path != "/dev/nvidiactl" && !slices.ContainsFunc(p.GPUs, isGPU) {
			nodes = append(nodes, d.Path)
		}
	}
	return nodes
}

// otherNodes returns the names of furtherNodes without CUDA's.
func otherNodes(p Plan) string {
	var names []string
	for _, node := range furtherNodes(p) {
		if !strings.HasPrefix(node, "/dev/nvidia-uvm") {
			names = append(names, filepath.Base(node))
		}
	}
	return strings.Join(names, " ")
}

// ignored returns the classes that a plan ignores.
func ignored(p Plan) string {
	var classes []string
	for _, s := range p.Ignored {
		class, _, _ := strings.Cut(s, ": ")
		classes = append(classes, class)
	}
	return fmt.Sprint(classes)
}

// In a pod other devices need a grant of their own. Ignored classes are shown in brackets.
func TestGrantsOfOtherDevices(t *testing.T) {
	const (
		every = "channel0 channel2 nvidia-fs0 nvidia-fs1 gdrdrv uverbs0 uverbs1 rdma_cm nvidia-nvswitchctl nvidia-nvswitch0 nvidia-nvswitch1 []"
		noGDS = "gds gdrcopy mofed nvswitch"
	)
	m := simulated.Majors
	channel := func(minor int) func(*specs.Spec) { return all(inPod(0), withNode(m.IMEX, minor)) }
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
			{name: "trust-env", spec: inPod(0), config: kubernetes(config.TrustEnv), want: every},
			{name: "audit", spec: inPod(0), config: kubernetes(config.Audit), want: every + " audit audit audit audit audit"},
			{name: "every class", spec: inPod(0), config: allow("imex", "gds", "gdrcopy", "mofed", "nvswitch"), want: every},
			{name: "a channel that was allocated", spec: channel(2), want: "channel2 [imex 0 " + noGDS + "]"},
			{name: "a channel that was allocated and not asked for", spec: channel(1), want: " [imex " + noGDS + "]"},
			{name: "all mounted channels", spec: all(inPod(0), listing("imex/all")), want: "channel0 channel1 channel2 [" + noGDS + "]"},
			{name: "mounted channels, mounts not accepted", spec: all(inPod(0), listing("imex/1")), config: noMounts, want: " [imex " + noGDS + "]"},
		},
	}.run(t)
}

func TestAClassThatTheHostDoesNotHaveIsNotGiven(t *testing.T) {
	h := newHost(t, sim.Options{GPUs: 1, Others: sim.Others{GDRCopy: true}})
	decided := func() string {
		p, err := h.resolve(t, newSpec("NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_GDRCOPY=enabled"))
		check(t, err)
		i := slices.IndexFunc(p.Decisions, func(d verdict.Decision) bool { return d.Subject == "gdrcopy" })
		return fmt.Sprint(p.Classes, " ", p.Decisions[i].Decision)
	}
	if got := decided(); got != "[gdrcopy] given" {
		t.Errorf("got %s", got)
	}
	check(t, os.Remove(h.cfg.Host.DevRoot+"/dev/gdrdrv"))
	if got := decided(); got != "[] not given" {
		t.Errorf("without the node: %s", got)
	}
}

// GDS needs files besides its nodes.
func TestGDSFiles(t *testing.T) {
	files := func(p Plan) string {
		var list []string
		for _, m := range p.Mounts {
			if m.Source == simulated.DevRoot+udevDir || m.Source == simulated.Root+cufileJSON {
				list = append(list, m.Destination)
			}
		}
		for _, f := range p.Changes.Mask { // without this file cuFile considers the driver absent
			if f.Path == "nvidia-fs/version" {
				list = append(list, f.Path)
			}
		}
		slices.Sort(list)
		return strings.Join(list, " ")
	}
	gds := []string{"NVIDIA_GDS=enabled"}
	const masked = " nvidia-fs/version"
	table{env: devices("0"), show: files, rows: []row{
		{name: "with it", env: gds, want: cufileJSON + " " + udevDir + masked},
		{name: "not without it", env: []string{"NVIDIA_MOFED=enabled"}},
		{name: "not where it is not granted", env: gds, spec: inPod(0)},
		{name: "not over a volume of the container's", env: gds, spec: mounting("/srv", cufileJSON), want: udevDir + masked},
	}}.run(t)
	empty := t.TempDir() // its /run leads out of it
	symlink(t, filepath.Join(simulated.DevRoot, "dev"), empty+"/dev")
	symlink(t, filepath.Join(simulated.DevRoot, "run"), empty+"/run")
	check(t, os.Chmod(simulated.Root+cufileJSON, 0o666))
	defer func() { _ = os.Chmod(simulated.Root+cufileJSON, 0o644) }()
	noted := func(p Plan) string {
		return fmt.Sprint(files(p), strings.Contains(strings.Join(p.Notes, "\n"), "is writable by users other than root"))
	}
	table{env: append(devices("0"), gds...), show: noted, rows: []row{
		{name: "not where they are not root's, and not where the host has none", config: func(c *config.Config) { c.Host.DevRoot = empty }, want: masked[1:] + "true"},
	}}.run(t)
}
