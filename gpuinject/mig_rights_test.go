package gpuinject

import (
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
)

func TestMIGRights(t *testing.T) {
	h := newMIGHost(t)
	const configure, watch = "NVIDIA_MIG_CONFIG_DEVICES=all", "NVIDIA_MIG_MONITOR_DEVICES=all"
	withMIG := func(s *specs.Spec) { inPod()(s); s.Linux.Devices = h.migPod([]int{0}, nil).Linux.Devices }
	list := func(files string, nodes ...string) string {
		slices.Sort(nodes)
		return strings.Join(nodes, " ") + "; " + files
	}
	all := []string{"/dev/nvidia-caps/nvidia-cap1", h.gpuNode(0), h.gpuNode(1), h.gpuNode(2)}
	contractSection{
		host: h,
		show: func(p Plan) string { // nodes, and rights that procfs shows
			files := slices.DeleteFunc(slices.Clone(p.Proc.Capabilities), func(f string) bool { return !strings.HasPrefix(f, "mig/") })
			return list(strings.Join(files, " "), nodesOf(p)...)
		},
		cases: []contractCase{
			{name: "an ordinary pod with a MIG device", env: append(devices("all"), watch), spec: withMIG, here: "refused: NVIDIA_MIG_MONITOR_DEVICES is not for this container: the container must be privileged"},
			{name: "an ordinary pod without one", env: append(devices("all"), configure), spec: inPod(), here: "starts without a GPU"},
			{name: "all", env: append(devices("all"), configure), spec: admin, here: list("mig/config", append(h.capNodes(0, 1, 2), all...)...)},
			{name: "the GPU by its name", env: append(devices("1"), configure, watch), spec: admin,
				here: list("mig/config mig/monitor", append(h.capNodes(0, 1, 2), "/dev/nvidia-caps/nvidia-cap1", "/dev/nvidia-caps/nvidia-cap2", h.gpuNode(1))...)},
			{name: "a GPU without MIG", env: append(devices("0"), watch), spec: admin, here: list("mig/monitor", "/dev/nvidia-caps/nvidia-cap2", h.gpuNode(0))},
			{name: "a privileged pod", env: append(devices("all"), configure), spec: func(s *specs.Spec) { inPod()(s); privileged(s) }, here: list("", append(h.capNodes(0, 1, 2), all...)...)},
		},
	}.run(t)
}

func TestMIGRightsAreLimitedToGrant(t *testing.T) {
	h := newMIGHost(t)
	h.cfg.Policy.AcceptEnvWhenUnprivileged = false
	spec := newSpec("NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_MIG_MONITOR_DEVICES=all")
	spec.Process.Capabilities.Bounding = []string{"CAP_SYS_ADMIN"}
	spec.Linux.Devices = h.migPod([]int{0}, nil).Linux.Devices
	plan, err := h.resolve(t, spec)
	if err != nil {
		t.Fatal(err)
	}
	want := append(h.capNodes(0), "/dev/nvidia-caps/nvidia-cap2", h.gpuNode(1))
	slices.Sort(want)
	if got := nodesOf(plan); !slices.Equal(got, want) || len(plan.GPUs) != 0 {
		t.Errorf("nodes %q, GPUs %+v, want %q", got, plan.GPUs, want)
	}
}
