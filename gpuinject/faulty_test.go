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

// By its GPU's UUID and its instances it is refused with the reason without NVML, if procfs has that UUID.
func TestAMIGDeviceOfAGPUWhoseListCannotBeRead(t *testing.T) {
	h := newMIGHost(t)
	dir := filepath.Join(h.ProcRoot, fmt.Sprintf("driver/nvidia/capabilities/gpu%d/mig", h.GPUs[1].Minor))
	testtree.Check(t, os.Rename(dir, dir+".away"))
	testtree.Check(t, os.WriteFile(dir, nil, 0o444))
	table{show: showMIG, host: h, rows: []row{
		{name: "by its instances", env: devices(h.older("5/0")), want: "refused: a MIG device of GPU 1 ... cannot be used ... " + dir},
		{name: "others", env: devices("all"), want: "GPU 0, GPU 2"},
	}}.run(t)
}

// While the driver's packages are upgraded, one after the other, the list of the loaded driver's files
// stays: a view may still hold them.
func TestTheListOfTheLoadedDriverOutlivesAnUpgrade(t *testing.T) {
	h := newHost(t, sim.Options{GPUs: 1})
	plan := func(want string) {
		t.Helper()
		table{show: showGPUs, host: h, env: devices("0"), rows: []row{{want: want}}}.run(t)
	}
	list := func() string {
		text, err := os.ReadFile(filepath.Join(h.cfg.Host.StateDir, filesName))
		testtree.Check(t, err)
		return string(text)
	}
	plan("GPU 0")
	before := list()
	for _, stem := range []string{"libcuda", "libnvidia-ml"} {
		file := filepath.Join(h.Root, h.Layout.LibDir(), stem+".so.")
		testtree.Check(t, os.Rename(file+h.Version, file+"999.1.2"))
		plan("refused: NVIDIA driver library libcuda.so.999.1.2 ... " + h.Version)
		if list() != before {
			t.Errorf("without %s the list is another one", stem)
		}
	}
}

// A library of the driver that containers do not get through a fault of the host is in the plan.
func TestARefusedLibraryIsNoted(t *testing.T) {
	h := newHost(t, sim.Options{GPUs: 1})
	file := filepath.Join(h.Root, h.Layout.LibDir(), "libnvidia-nvvm.so."+h.Version)
	text, err := os.ReadFile(file)
	testtree.Check(t, err)
	testtree.Check(t, os.Remove(file))
	testtree.Check(t, os.WriteFile(file, text, 0o644))
	testtree.Check(t, os.Chmod(file, 0o666))
	note := file + " is not given: it is writable by users other than root"
	noted := func(p Plan) string {
		return fmt.Sprint(slices.ContainsFunc(p.Notes, func(n string) bool { return strings.HasPrefix(n, note) }))
	}
	table{show: noted, host: h, env: devices("0"), rows: []row{
		{name: "compute", env: caps("compute"), want: "true"},
		{name: "compute again", env: caps("compute"), want: "true"},
		{name: "utility", env: caps("utility"), want: "false"},
	}}.run(t)
}

// "all" leaves out a device whose node is missing or another one's, and a container that gets another
// does not notice. On a host that has no nodes yet it says what to do.
func TestAllWithoutANode(t *testing.T) {
	h := newMIGHost(t)
	nodes := func(names ...string) {
		for _, name := range names {
			name = filepath.Join(h.DevRoot, "dev", name)
			testtree.Check(t, os.Rename(name, name+".away"))
			t.Cleanup(func() { testtree.Check(t, os.Rename(name+".away", name)) })
		}
	}
	gpu := func(i int) string { return fmt.Sprintf("nvidia%d", h.GPUs[i].Minor) }
	refuse := func(c *config.Config) { c.Policy.FaultyGPUs = config.Refuse }
	run := func(name string, rows ...row) {
		t.Helper()
		t.Run(name, func(t *testing.T) { table{show: showMIG, host: h, rows: rows}.run(t) })
	}
	nodes(fmt.Sprintf("nvidia-caps/nvidia-cap%d", h.MIG[0].CIMinor))
	run("of a MIG device",
		row{name: "all", env: devices("all"), want: "GPU 0, GPU 2, 5/0 of GPU 1, 5/1 of GPU 1"},
		row{name: "by UUID", env: devices(h.MIG[0].UUID), want: "refused: device node"})
	nodes(gpu(2))
	run("and of a GPU",
		row{name: "all", env: devices("all"), want: "GPU 0, 5/0 of GPU 1, 5/1 of GPU 1"},
		row{name: "all, if that is refused", env: devices("all"), config: refuse, want: "refused: \"all\" includes GPU 2 "},
		row{name: "by index", env: devices("2"), want: "refused: device node"},
		row{name: "another", env: devices("0"), want: "GPU 0"})
	nodes(gpu(1))
	run("and of the partitioned GPU", row{name: "all", env: devices("all"), want: "GPU 0"})
	nodes(gpu(0))
	run("and of the last", row{name: "all", env: devices("all"), want: "refused: device node ... nvidia-shimctl prepare"})
}
