package gpuinject

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simdriver/sim"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testtree"
)

// The fault of one GPU touches only containers that get this GPU.
func TestAFaultyGPU(t *testing.T) {
	h := newHost(t, sim.Options{GPUs: 3})
	testtree.Check(t, os.Remove(filepath.Join(h.ProcRoot, "driver/nvidia/gpus", h.GPUs[1].BusID, "information")))
	const faulty = "refused: GPU 1 "
	node := func(i int) func(*specs.Spec) { return withNode(h.Majors.GPU, h.GPUs[i].Minor) }
	byCDI := func(i int) func(*specs.Spec) {
		return all(node(i), withNode(h.Majors.GPU, 255), editedByCDI(fmt.Sprintf("/dev/nvidia%d", h.GPUs[i].Minor)))
	}
	refuse := func(c *config.Config) { c.Policy.FaultyGPUs = config.Refuse }
	table{
		show: showGPUs, host: h,
		rows: []row{
			{name: "others by index, which stays", env: devices("0,2"), want: "GPUs 0, 2"},
			{name: "itself", env: devices("1"), want: faulty},
			{name: "itself by its bus id", env: devices(h.GPUs[1].BusID), want: faulty},
			{name: "all, which leaves it out", env: devices("all"), want: "GPUs 0, 2"},
			{name: "all, if that is refused", env: devices("all"), config: refuse, want: "refused: \"all\" includes GPU 1 "},
			{name: "a pod that was given another", env: devices("all"), spec: inPodOf(h.Driver, 2), config: refuse, want: "GPU 2"},
			{name: "a pod that was given it", env: devices("all"), spec: inPodOf(h.Driver, 1), want: faulty},
			{name: "another by CDI", spec: byCDI(2), want: "GPU 2"},
			{name: "itself by CDI", spec: byCDI(1), want: faulty},
			{name: "a privileged pod, which has every node", env: devices("2"), spec: all(inPodOf(h.Driver, 0, 1, 2), privileged), want: "GPU 2"},
		},
	}.run(t)
}

// The MIG devices of a GPU that cannot be used are refused with its reason, by every name, also those
// that the kubelet allocated.
func TestAMIGDeviceOfAFaultyGPU(t *testing.T) {
	h := newMIGHost(t)
	writeCheckpoint(t, podAllocation{"u1", "main", "nvidia.com/mig-1g.18gb", []string{h.MIG[1].UUID}}, podAllocation{"u2", "main", gpuResource, []string{h.GPUs[2].UUID}})
	testtree.Check(t, os.Remove(filepath.Join(h.ProcRoot, "driver/nvidia/gpus", h.GPUs[1].BusID, "information")))
	const faulty = "refused: a MIG device of GPU 1 ... cannot be used ... information"
	table{show: showMIG, host: h, rows: []row{
		{name: "by UUID", env: devices(h.MIG[0].UUID), want: faulty},
		{name: "by index", env: devices("1:0"), want: faulty},
		{name: "by its instances", env: devices(h.older("5/0")), want: faulty},
		{name: "in a pod", env: devices("all"), spec: podNamed("u1", "main"), want: faulty},
		{name: "another pod", env: devices("all"), spec: podNamed("u2", "main"), want: "GPU 2"},
		{name: "all", env: devices("all"), want: "GPU 0, GPU 2"},
		{name: "an unknown one", env: devices("MIG-00000000-0000-0000-0000-000000000000"), want: "refused: unknown MIG device"},
		{name: "an unknown one of another GPU", env: devices("0:0"), want: "refused: unknown MIG device"},
	}}.run(t)
}
