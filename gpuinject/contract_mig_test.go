package gpuinject

import (
	"fmt"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// showMIG shows whole GPUs, MIG devices by the ids of their GPU and compute instance,
// and rights.
func showMIG(j *Job) string {
	var list []string
	for _, g := range j.Plan.GPUs {
		list = append(list, fmt.Sprintf("GPU %d", g.Index))
	}
	for _, m := range j.Plan.MIG {
		list = append(list, fmt.Sprintf("%d/%d of GPU %d", m.GI, m.CI, m.GPU))
	}
	for _, r := range j.Plan.MIGRights {
		list = append(list, "the right `mig/"+r+"`")
	}
	return strings.Join(list, ", ")
}

func migContract(t *testing.T) []contractSection {
	h := newMIGHost(t)
	const fails = "the create fails"
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
			{name: "by the older name", env: devices("MIG-" + h.GPUs[1].UUID + "/5/1"), here: "5/1 of GPU 1", jit: same, legacy: same},
			{name: "by GPU and index", env: devices("1:1"), here: "5/0 of GPU 1", jit: same, legacy: same},
			{name: "by the beginning of a UUID", env: devices(first.UUID[:12]), here: "9/0 of GPU 1", jit: fails, legacy: fails},
			{name: "several, one of them by two names", env: devices("1:0,1:2," + first.UUID), here: "5/1 of GPU 1, 9/0 of GPU 1"},
			{name: "beside a GPU", env: devices("0,1:0"), here: "GPU 0, 9/0 of GPU 1"},
			{name: "all", env: devices("all"), here: all, jit: same, legacy: "every GPU and every MIG device"},
			{name: "by a mount", mounts: []string{first.UUID}, here: "9/0 of GPU 1", jit: "the same, if accepted", legacy: "the same, if accepted"},
			{name: "by a mount and the older name", mounts: []string{"MIG-" + h.GPUs[1].UUID + "/5/1"}, here: "5/1 of GPU 1", jit: "the same, if accepted", legacy: "the same, if accepted"},
			{name: "one that the host does not have", env: devices("1:7"), here: "refused: unknown MIG device", jit: fails, legacy: fails},
			{name: "of a GPU without MIG", env: devices("0:0"), here: "refused: unknown MIG device", jit: fails, legacy: fails},
			{name: "a GPU that is divided, by its own name", env: devices("1"), here: "refused: divided by MIG", legacy: "the node of the GPU, without the right to use it"},
		},
	}, {
		title: "Nodes of MIG devices", host: h, env: []string{"NVIDIA_DRIVER_CAPABILITIES=utility"}, show: showNodes,
		cases: []contractCase{
			{name: "of one", env: devices(first.UUID), here: nodes(first.GIMinor, first.CIMinor), jit: same, legacy: same},
		},
	}, {
		title: "Rights over MIG", host: h, env: devices("all"), show: showMIG,
		cases: []contractCase{
			{name: "to configure it", env: config, with: "`CAP_SYS_ADMIN`", spec: admin, here: rights + ", the right `mig/config`", jit: "not read", legacy: same},
			{name: "to watch it", env: variable("MONITOR", "all"), with: "`CAP_SYS_ADMIN`", spec: admin, here: rights + ", the right `mig/monitor`", jit: "not read", legacy: same},
			{name: "for the unprivileged", env: config, here: "refused: NVIDIA_MIG_CONFIG_DEVICES is not for this container", jit: "not read", legacy: fails},
			{name: "for a pod with the capability SYS_ADMIN", env: config, with: "a pod with GPU 0; `CAP_SYS_ADMIN`", spec: func(s *specs.Spec) { inPodOf(h.Driver, 0)(s); admin(s) },
				here: "refused: NVIDIA_MIG_CONFIG_DEVICES is not for this container", jit: "not read"},
			{name: "by another word", env: variable("CONFIG", "0"), with: "`CAP_SYS_ADMIN`", spec: admin, here: `refused: only "all" has a meaning`, jit: "not read", legacy: "no meaning"},
			{name: "beside a MIG device by name", env: append(devices("1:0"), config...), with: "`CAP_SYS_ADMIN`", spec: admin, here: "refused: ask for one or the other", jit: "not read", legacy: fails},
		},
	}}
}
