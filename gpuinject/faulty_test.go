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
