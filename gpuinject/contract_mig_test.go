package gpuinject

import (
	"fmt"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simdriver/sim"
)

// showMIG shows whole GPUs, MIG devices by the ids of their GPU and compute instance,
// and rights.
func showMIG(p Plan) string {
	var list []string
	for _, g := range p.GPUs {
		list = append(list, fmt.Sprintf("GPU %d", g.Index))
	}
	for _, m := range p.MIG {
		list = append(list, fmt.Sprintf("%d/%d of GPU %d", m.GI, m.CI, m.GPU))
	}
	for _, r := range p.MIGRights {
		list = append(list, "the right `mig/"+r+"`")
	}
	return strings.Join(list, ", ")
}

func migContract(t *testing.T) []contractSection {
	h := newMIGHost(t)
	d, cfg := newHost(t, sim.Options{GPUs: 11, MIG: []sim.MIGDevice{{GPU: 10, GI: 9}}})
	many := &migHost{Driver: d, cfg: cfg}
	const (
		fails = "fails"
		node  = "the right's node"
	)
	variable := func(name, value string) []string { return []string{"NVIDIA_MIG_" + name + "_DEVICES=" + value} }
	config := variable("CONFIG", "all")
	all := "GPU 0, GPU 2, 5/0 of GPU 1, 5/1 of GPU 1, 9/0 of GPU 1"
	rights := "GPU 0, GPU 1, GPU 2, 5/0 of GPU 1, 5/1 of GPU 1, 9/0 of GPU 1"
	nodes := func(minors ...int) string {
		list := []string{fmt.Sprintf("`/dev/nvidia%d`", h.GPUs[1].Minor)}
		for _, m := range minors {
			list = append(list, fmt.Sprintf("`/dev/nvidia-caps/nvidia-cap%d`", m))
		}
		return strings.Join(list, ", ")
	}
	first := h.MIG[0]
	return []contractSection{{
		title: "MIG devices", host: h, show: showMIG,
		cases: []contractCase{
			{name: "by UUID", env: devices(first.UUID), here: "9/0 of GPU 1", jit: same, legacy: same},
			{name: "by the older name", env: devices("MIG-" + h.GPUs[1].UUID + "/5/1"), here: "5/1 of GPU 1", jit: same, legacy: "fails since driver 470: NVML's UUID is another"},
			{name: "by GPU and index", env: devices("1:1"), here: "5/0 of GPU 1", jit: same, legacy: same},
			{name: "by the beginning of a UUID", env: devices(first.UUID[:12]), here: "9/0 of GPU 1", jit: fails, legacy: fails},
			{name: "several, one of them by two names", env: devices("1:0,1:2," + first.UUID), here: "5/1 of GPU 1, 9/0 of GPU 1", jit: "its edits twice", legacy: same},
			{name: "beside a GPU", env: devices("0,1:0"), here: "GPU 0, 9/0 of GPU 1", jit: same, legacy: same},
			{name: "by index, of a GPU whose index has two digits", env: devices("10:0"), with: "a host of 11 GPUs", host: many, here: "9/0 of GPU 10", jit: same, legacy: same},
			{name: "all", env: devices("all"), here: all, jit: same, legacy: "every GPU and every MIG device"},
			{name: "by a mount", mounts: []string{first.UUID}, here: "9/0 of GPU 1", jit: same, legacy: same},
			{name: "by a mount and the older name", mounts: []string{"MIG-" + h.GPUs[1].UUID + "/5/1"}, here: "5/1 of GPU 1", jit: same, legacy: same},
			{name: "one that the host does not have", env: devices("1:7"), here: "refused: unknown MIG device", jit: fails, legacy: fails},
			{name: "of a GPU without MIG", env: devices("0:0"), here: "refused: unknown MIG device", jit: fails, legacy: fails},
			{name: "a GPU that is partitioned, by its own name", env: devices("1"), here: "refused: partitioned by MIG", jit: "the GPU's node, no right to use it", legacy: "the GPU's node, no right to use it"},
		},
	}, {
		title: "Nodes of MIG devices", host: h, env: []string{"NVIDIA_DRIVER_CAPABILITIES=utility"}, show: showNodes,
		cases: []contractCase{
			{name: "of one", env: devices(first.UUID), here: nodes(first.GIMinor, first.CIMinor), jit: same, legacy: same},
		},
	}, {
		title: "Rights over MIG", host: h, env: devices("all"), show: showMIG, // jit: since toolkit 1.20.1
		cases: []contractCase{
			{name: "to configure it", env: config, with: "`CAP_SYS_ADMIN`", spec: admin, here: rights + ", the right `mig/config`", jit: node, legacy: same},
			{name: "to configure it, in capitals", env: variable("CONFIG", "ALL"), with: "`CAP_SYS_ADMIN`", spec: admin, here: rights + ", the right `mig/config`", jit: node},
			{name: "to watch it", env: variable("MONITOR", "all"), with: "`CAP_SYS_ADMIN`", spec: admin, here: rights + ", the right `mig/monitor`", jit: node, legacy: same},
			{name: "for the unprivileged", env: config, here: "refused: NVIDIA_MIG_CONFIG_DEVICES is not for this container", jit: fails, legacy: fails},
			{name: "for a pod with the capability SYS_ADMIN", env: config, with: "a pod with GPU 0; `CAP_SYS_ADMIN`", spec: func(s *specs.Spec) { inPodOf(h.Driver, 0)(s); admin(s) },
				here: "refused: NVIDIA_MIG_CONFIG_DEVICES is not for this container", jit: "—", legacy: "—"},
			{name: "by another word", env: variable("CONFIG", "0"), with: "`CAP_SYS_ADMIN`", spec: admin, here: `refused: the only value is "all"`, jit: fails, legacy: fails},
			{name: "beside a MIG device by name", env: append(devices("1:0"), config...), with: "`CAP_SYS_ADMIN`", spec: admin, here: "refused: ask for one or the other", jit: fails, legacy: fails},
		},
	}}
}
