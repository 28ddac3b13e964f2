package simhost

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simdriver/sim"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testenv"
)

// Devices are the devices of a simulated driver as a test expects them in containers. Minor
// numbers, nodes and files are repeated here, independently of the product.
type Devices struct {
	Driver *sim.Driver
	// Minors are the minor numbers of the GPUs, by index.
	Minors []int
}

// minors are the minor numbers of GPUs, by their count and index. The simulated driver numbers them
// like a host whose probe order differs from that of the bus ids.
var minors = map[int][]int{
	3: {2, 0, 1},
	4: {2, 3, 0, 1},
	8: {2, 3, 4, 5, 6, 7, 0, 1},
}

// NewDevices returns the devices of a driver.
func NewDevices(t testing.TB, driver *sim.Driver) Devices {
	t.Helper()
	h := Devices{Driver: driver}
	for _, g := range driver.GPUs {
		h.Minors = append(h.Minors, g.Minor)
	}
	if want, ok := minors[len(h.Minors)]; ok && !slices.Equal(h.Minors, want) {
		t.Fatalf("the GPUs have the minor numbers %v, want %v", h.Minors, want)
	}
	return h
}

// Node is a device node of the simulated host.
type Node struct {
	Name   string // below /dev
	Number string // major:minor
}

// CapMinor is the minor number of a MIG capability node in the driver's own table
// (/proc/driver/nvidia-caps/mig-minors): each GPU has 15 GPU instances, and each of
// these 8 compute instances. ci is -1 for the GPU instance itself.
func CapMinor(gpu, gi, ci int) int { return 3 + (gpu*15+gi)*9 + 1 + ci }

// Nodes are all nodes of GPUs that the host has.
func (h Devices) Nodes() []Node {
	m := h.Driver.Majors
	node := func(name string, major uint32, minor int) Node { return Node{name, fmt.Sprintf("%d:%d", major, minor)} }
	capability := func(n int) Node { return node(fmt.Sprintf("nvidia-caps/nvidia-cap%d", n), m.Caps, n) }
	nodes := []Node{
		node("nvidiactl", m.GPU, 255), node("nvidia-modeset", m.GPU, 254), node("nvidia-uvm", m.UVM, 0), node("nvidia-uvm-tools", m.UVM, 1),
		capability(1), capability(2),
	}
	for i, minor := range h.Minors {
		nodes = append(nodes, node(fmt.Sprintf("nvidia%d", minor), m.GPU, minor),
			node(fmt.Sprintf("dri/card%d", i+1), m.DRM, i+1), node(fmt.Sprintf("dri/renderD%d", 128+i), m.DRM, 128+i))
	}
	for _, d := range h.Driver.MIG {
		for _, ci := range []int{-1, d.CI} {
			if n := capability(CapMinor(h.Minors[d.GPU], d.GI, ci)); !slices.Contains(nodes, n) {
				nodes = append(nodes, n)
			}
		}
	}
	return nodes
}

// Seen is what a container can see and do.
type Seen struct {
	Open, Mknod []string // "nvidia0 ENXIO", "195:0 EPERM"
	Dev         []string // character devices of NVIDIA and DRM below /dev
	SMI, CUDA   []string // UUIDs
	SMIText     string
	CUDAText    string
	ProcGPUs    []string // bus ids in the mask
}

// ProbeArgs is a command that prints, for Parse, what a container can see and do with
// nodes, by default all of the host.
func (h Devices) ProbeArgs(nodes ...Node) []string {
	if len(nodes) == 0 {
		nodes = h.Nodes()
	}
	var paths, numbers []string
	for _, n := range nodes {
		paths, numbers = append(paths, "/dev/"+n.Name), append(numbers, n.Number)
	}
	return []string{"/bin/sh", "-c", strings.Join([]string{
		"exec 2>/dev/null",
		"echo '== open'", "/test/opendev " + strings.Join(paths, " "),
		"echo '== mknod'", "/test/mkdev " + strings.Join(numbers, " "),
		"echo '== dev'", "find /dev -type c | grep -e nvidia -e dri",
		"echo '== smi'", "nvidia-smi -L",
		"echo '== cuda'", "/test/cucount",
		"echo '== proc'", "ls /proc/driver/nvidia/gpus",
		"true",
	}, "\n")}
}

// Probe runs a container and returns what it sees.
func (h *Host) Probe(t testing.TB, o testenv.RunOptions) Seen {
	t.Helper()
	o.Args = h.ProbeArgs()
	return Parse(h.MustRun(t, o))
}

// Sections are the lines after each line "== name" of an output.
func Sections(out string) map[string][]string {
	sections, section := map[string][]string{}, ""
	for line := range strings.Lines(out) {
		line = strings.TrimSpace(line)
		if name, ok := strings.CutPrefix(line, "== "); ok {
			section = name
		} else {
			sections[section] = append(sections[section], line)
		}
	}
	return sections
}

// Parse reads the output of ProbeArgs.
func Parse(out string) Seen {
	s := Sections(out)
	text := func(lines []string) string { return strings.Join(append(lines, ""), "\n") }
	p := Seen{Mknod: s["mknod"], ProcGPUs: s["proc"], SMIText: text(s["smi"]), CUDAText: text(s["cuda"])}
	for _, line := range s["open"] {
		p.Open = append(p.Open, strings.TrimPrefix(line, "/dev/"))
	}
	for _, line := range s["dev"] {
		p.Dev = append(p.Dev, strings.TrimPrefix(line, "/dev/"))
	}
	for _, line := range s["smi"] {
		if _, uuid, ok := strings.Cut(line, "(UUID: "); ok {
			p.SMI = append(p.SMI, strings.TrimSuffix(uuid, ")"))
		}
	}
	for _, line := range s["cuda"] {
		if _, uuid, ok := strings.Cut(line, " GPU-"); ok {
			p.CUDA = append(p.CUDA, "GPU-"+uuid)
		}
	}
	slices.Sort(p.Dev)
	return p
}

// Expect is what a container must see that has compute and utility and the GPUs with
// these indices: exactly their nodes, nvidiactl and UVM.
func (h Devices) Expect(gpus []int) Seen { return h.ExpectMIG(gpus, nil) }

// ExpectMIG is Expect for whole GPUs, MIG devices by position in Driver.MIG, and further
// capability nodes by number.
func (h Devices) ExpectMIG(gpus, mig []int, capabilities ...int) Seen {
	return h.ExpectNodes(h.Nodes(), gpus, mig, capabilities...)
}

// ExpectNodes is ExpectMIG for a container that looks at these nodes only.
func (h Devices) ExpectNodes(nodes []Node, gpus, mig []int, capabilities ...int) Seen {
	granted := map[string]bool{"nvidiactl": true, "nvidia-uvm": true, "nvidia-uvm-tools": true}
	capabilities = slices.Clone(capabilities)
	gpus = slices.Clone(gpus)
	for _, i := range mig {
		m := h.Driver.MIG[i]
		capabilities = append(capabilities, CapMinor(h.Minors[m.GPU], m.GI, -1), CapMinor(h.Minors[m.GPU], m.GI, m.CI))
		if !slices.Contains(gpus, m.GPU) {
			gpus = append(gpus, m.GPU)
		}
	}
	slices.Sort(gpus)
	for _, n := range capabilities {
		granted[fmt.Sprintf("nvidia-caps/nvidia-cap%d", n)] = true
	}
	var want Seen
	for _, i := range gpus {
		granted[fmt.Sprintf("nvidia%d", h.Minors[i])] = true
		want.SMI, want.CUDA = append(want.SMI, h.Driver.GPUs[i].UUID), append(want.CUDA, h.Driver.GPUs[i].UUID)
		want.ProcGPUs = append(want.ProcGPUs, h.Driver.GPUs[i].BusID)
		// The order of NVML.
		for k, m := range h.Driver.MIG {
			if m.GPU == i && slices.Contains(mig, k) {
				want.SMI = append(want.SMI, m.UUID)
			}
		}
	}
	for _, n := range nodes {
		if granted[n.Name] {
			// There is no driver behind it: ENXIO means that the device cgroup permits it.
			want.Open, want.Mknod, want.Dev = append(want.Open, n.Name+" ENXIO"), append(want.Mknod, n.Number+" ENXIO"), append(want.Dev, n.Name)
		} else {
			want.Open, want.Mknod = append(want.Open, n.Name+" ENOENT"), append(want.Mknod, n.Number+" EPERM")
		}
	}
	slices.Sort(want.Dev)
	return want
}

// ExpectNothing is what a container without the driver must see.
func (h Devices) ExpectNothing() (want Seen) {
	for _, n := range h.Nodes() {
		want.Open, want.Mknod = append(want.Open, n.Name+" ENOENT"), append(want.Mknod, n.Number+" EPERM")
	}
	return want
}

// Compare fails the test if a container does not see what it must see.
func Compare(t testing.TB, got, want Seen) {
	t.Helper()
	for _, c := range []struct {
		what      string
		got, want []string
	}{
		{"open of each node", got.Open, want.Open},
		{"mknod and open of each number", got.Mknod, want.Mknod},
		{"device nodes in /dev", got.Dev, want.Dev},
		{"nvidia-smi -L", got.SMI, want.SMI},
		{"libcuda", got.CUDA, want.CUDA},
		{"GPUs in the mask", got.ProcGPUs, want.ProcGPUs},
	} {
		if !slices.Equal(c.got, c.want) {
			t.Errorf("%s:\ngot  %q\nwant %q", c.what, c.got, c.want)
		}
	}
	if !slices.Equal(got.SMI, want.SMI) {
		t.Errorf("nvidia-smi -L wrote %q", got.SMIText)
	}
	if n := fmt.Sprintf("count %d\n", len(want.CUDA)); len(want.CUDA) > 0 && !strings.Contains(got.CUDAText, n) {
		t.Errorf("libcuda: got %q, want %q", got.CUDAText, n)
	}
}
