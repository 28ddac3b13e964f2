package integration

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	runtimeoptions "github.com/containerd/containerd/api/types/runtimeoptions/v1"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/ttrpc"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/images"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simdriver/sim"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testenv"
)

// devImage is small and has what the probe needs: a shell, glibc, the programs.
const devImage = "glibc-nocache"

// devHost is a host with devImage imported.
type devHost struct {
	*host
	Image string
}

func newDevHost(t testing.TB, o hostOptions) *devHost {
	t.Helper()
	h := newHost(t, o)
	return &devHost{host: h, Image: h.image(t, devImage)}
}

// devTree is the image as a directory of the host.
func (h *devHost) devTree(t testing.TB) string {
	t.Helper()
	root := filepath.Join(h.Dir, "tree")
	if _, err := os.Stat(root); err == nil {
		return root
	}
	tar, err := images.Build(devImage)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(root, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := images.Unpack(tar, root); err != nil {
		t.Fatal(err)
	}
	return root
}

// devNode is a device node of the simulated host.
type devNode struct {
	name   string // below /dev
	number string // major:minor
}

// devNodes are all nodes that the host has, written down apart from the simulated
// driver's own list: minors[i] is the minor number of the GPU with index i.
func devNodes(d *sim.Driver, minors []int) []devNode {
	gpu, uvm, caps, drm := d.Majors.GPU, d.Majors.UVM, d.Majors.Caps, d.Majors.DRM
	nodes := []devNode{
		{"nvidiactl", fmt.Sprintf("%d:255", gpu)},
		{"nvidia-modeset", fmt.Sprintf("%d:254", gpu)},
		{"nvidia-uvm", fmt.Sprintf("%d:0", uvm)},
		{"nvidia-uvm-tools", fmt.Sprintf("%d:1", uvm)},
		{"nvidia-caps/nvidia-cap1", fmt.Sprintf("%d:1", caps)},
		{"nvidia-caps/nvidia-cap2", fmt.Sprintf("%d:2", caps)},
	}
	for i, minor := range minors {
		nodes = append(nodes,
			devNode{fmt.Sprintf("nvidia%d", minor), fmt.Sprintf("%d:%d", gpu, minor)},
			devNode{fmt.Sprintf("dri/card%d", i+1), fmt.Sprintf("%d:%d", drm, i+1)},
			devNode{fmt.Sprintf("dri/renderD%d", 128+i), fmt.Sprintf("%d:%d", drm, 128+i)})
	}
	return nodes
}

// devMinors is the minor number of each GPU by index. The simulated driver numbers
// GPUs as a host whose probe order is not the order of bus ids.
var devMinors = map[int][]int{
	3: {2, 0, 1},
	4: {2, 3, 0, 1},
	8: {2, 3, 4, 5, 6, 7, 0, 1},
}

// devCheckMinors makes sure that the table above is what the host has.
func devCheckMinors(t testing.TB, d *sim.Driver) []int {
	t.Helper()
	minors := devMinors[len(d.GPUs)]
	for i, g := range d.GPUs {
		if len(minors) != len(d.GPUs) || g.Index != i || g.Minor != minors[i] {
			t.Fatalf("GPU %d of %d has minor %d, the test expects %v", i, len(d.GPUs), g.Minor, minors)
		}
	}
	return minors
}

// devProbe is what a container can see and do.
type devProbe struct {
	open, mknod []string // "nvidia0 ENXIO", "195:0 EPERM"
	dev         []string // character devices of NVIDIA and DRM below /dev
	smi, cuda   []string // GPU UUIDs
	smiText     string
	cudaText    string
	procGPUs    []string // bus ids in the mask
}

// devProbeScript does everything in one container.
func devProbeScript(nodes []devNode) []string {
	var paths, numbers []string
	for _, n := range nodes {
		paths = append(paths, "/dev/"+n.name)
		numbers = append(numbers, n.number)
	}
	return []string{"/bin/sh", "-c", strings.Join([]string{
		"echo '== open'", "/test/opendev " + strings.Join(paths, " "),
		"echo '== mknod'", "/test/mkdev " + strings.Join(numbers, " "),
		"echo '== dev'", "find /dev -type c | grep -e nvidia -e dri",
		"echo '== smi'", "nvidia-smi -L",
		"echo '== cuda'", "/test/cucount",
		"echo '== proc'", "ls /proc/driver/gpus",
		"true",
	}, "\n")}
}

func devParse(out string) devProbe {
	var p devProbe
	section := ""
	for line := range strings.Lines(out) {
		line = strings.TrimSpace(line)
		if name, ok := strings.CutPrefix(line, "== "); ok {
			section = name
			continue
		}
		switch section {
		case "open":
			p.open = append(p.open, strings.TrimPrefix(line, "/dev/"))
		case "mknod":
			p.mknod = append(p.mknod, line)
		case "dev":
			p.dev = append(p.dev, strings.TrimPrefix(line, "/dev/"))
		case "smi":
			p.smiText += line + "\n"
			if _, uuid, ok := strings.Cut(line, "(UUID: "); ok {
				p.smi = append(p.smi, strings.TrimSuffix(uuid, ")"))
			}
		case "cuda":
			p.cudaText += line + "\n"
			if _, uuid, ok := strings.Cut(line, " GPU-"); ok {
				p.cuda = append(p.cuda, "GPU-"+uuid)
			}
		case "proc":
			p.procGPUs = append(p.procGPUs, line)
		}
	}
	slices.Sort(p.dev)
	return p
}

// devExpect is what a container must see that was given the GPUs with these
// indices and compute and utility: exactly their nodes, nvidiactl and UVM.
func devExpect(d *sim.Driver, minors, indices []int) devProbe {
	granted := map[string]bool{"nvidiactl": true, "nvidia-uvm": true, "nvidia-uvm-tools": true}
	var p devProbe
	for _, i := range indices {
		granted[fmt.Sprintf("nvidia%d", minors[i])] = true
		p.smi = append(p.smi, d.GPUs[i].UUID)
		p.procGPUs = append(p.procGPUs, d.GPUs[i].BusID)
	}
	p.cuda = p.smi
	for _, n := range devNodes(d, minors) {
		if granted[n.name] {
			// No driver behind it: ENXIO is what a device cgroup lets through.
			p.open = append(p.open, n.name+" ENXIO")
			p.mknod = append(p.mknod, n.number+" ENXIO")
			p.dev = append(p.dev, n.name)
		} else {
			p.open = append(p.open, n.name+" ENOENT")
			p.mknod = append(p.mknod, n.number+" EPERM")
		}
	}
	slices.Sort(p.dev)
	return p
}

// devCompare says how a probe differs from what it must be.
func devCompare(t testing.TB, got, want devProbe) {
	t.Helper()
	for _, c := range []struct {
		what      string
		got, want []string
	}{
		{"open of each node", got.open, want.open},
		{"mknod and open of each number", got.mknod, want.mknod},
		{"device nodes in /dev", got.dev, want.dev},
		{"nvidia-smi -L", got.smi, want.smi},
		{"libcuda", got.cuda, want.cuda},
		{"GPUs in the mask", got.procGPUs, want.procGPUs},
	} {
		if !slices.Equal(c.got, c.want) {
			t.Errorf("%s:\ngot  %q\nwant %q", c.what, c.got, c.want)
		}
	}
	if n := fmt.Sprintf("count %d\n", len(want.cuda)); len(want.cuda) > 0 && !strings.Contains(got.cudaText, n) {
		t.Errorf("libcuda: got %q, want %q", got.cudaText, n)
	}
}

// devRun runs the probe in a container with env.
func (h *devHost) devRun(t testing.TB, env ...string) devProbe {
	t.Helper()
	return devParse(h.MustRun(t, testenv.RunOptions{
		Image: h.Image, Env: env, Args: devProbeScript(devNodes(h.Driver, devMinors[len(h.Driver.GPUs)])),
	}))
}

// devSleep starts a container that waits.
func (h *devHost) devSleep(t testing.TB, o testenv.RunOptions) string {
	t.Helper()
	o.Image, o.Detach = h.Image, true
	if o.Args == nil {
		o.Args = []string{"/bin/sleep", "600"}
	}
	id := h.Run(t, o).ID
	t.Cleanup(func() { _ = h.devRemove(id) })
	return id
}

func (h *devHost) devRemove(id string) error {
	_, _, _ = h.CtrErr("tasks", "rm", "--force", id)
	_, _, err := h.CtrErr("containers", "rm", id)
	return err
}

// devTask is the Task service of the shim that runs a container, for requests that
// ctr has no command for.
func (h *devHost) devTask(t testing.TB, id string) (taskapi.TTRPCTaskService, context.Context) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(h.BundleDir(id), "bootstrap.json"))
	if err != nil {
		t.Fatal(err)
	}
	var boot struct{ Address, Protocol string }
	if err := json.Unmarshal(data, &boot); err != nil {
		t.Fatal(err)
	}
	if boot.Protocol != "ttrpc" {
		t.Fatalf("the shim speaks %q", boot.Protocol)
	}
	conn, err := net.Dial("unix", strings.TrimPrefix(boot.Address, "unix://"))
	if err != nil {
		t.Fatal(err)
	}
	client := ttrpc.NewClient(conn)
	t.Cleanup(func() { client.Close() })
	ctx, cancel := context.WithTimeout(namespaces.WithNamespace(context.Background(), h.ID), 30*time.Second)
	t.Cleanup(cancel)
	return taskapi.NewTTRPCTaskClient(client), ctx
}

// devSpec is the OCI configuration that ctr would make for o, as a tree to edit,
// with a directory as its root file system: what ctr cannot say goes in by hand.
func (h *devHost) devSpec(t testing.TB, o testenv.RunOptions) map[string]any {
	t.Helper()
	o.RootfsDir = h.devTree(t)
	id := h.Create(t, o)
	defer h.Remove(t, id)
	var spec map[string]any
	dec := json.NewDecoder(bytes.NewReader([]byte(h.Ctr(t, "containers", "info", "--spec", id))))
	dec.UseNumber()
	if err := dec.Decode(&spec); err != nil {
		t.Fatal(err)
	}
	return spec
}

// devRunSpec runs a container with exactly this OCI configuration.
func (h *devHost) devRunSpec(t testing.TB, spec map[string]any, flags ...string) (stdout string, err error) {
	t.Helper()
	id := h.NewID()
	spec["linux"].(map[string]any)["cgroupsPath"] = "/" + h.ID + "/" + id
	data, err := json.Marshal(spec)
	if err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(h.Dir, id+".json")
	if err := os.WriteFile(name, data, 0o600); err != nil {
		t.Fatal(err)
	}
	argv := append([]string{"run", "--rm", "--fifo-dir", filepath.Join(h.Dir, "fifo"), "--runtime", testenv.DefaultRuntime, "--config", name}, flags...)
	stdout, _, err = h.CtrErr(append(argv, id)...)
	return stdout, err
}

// devOurLines are the lines that our code logged about a container, by level.
func (h *devHost) devOurLines(id, level string) []string {
	var lines []string
	for line := range strings.Lines(h.Log()) {
		if strings.Contains(line, `msg="nvidia:`) && strings.Contains(line, "id="+id+" ") && strings.Contains(line, "level="+level+" ") {
			lines = append(lines, strings.TrimSpace(line))
		}
	}
	return lines
}

// devWriteFile writes a file that only root can write, as configuration must be.
func devWriteFile(t testing.TB, name, content string) string {
	t.Helper()
	if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

// devTable is runtime options that carry a handler's table.
func devTable(t testing.TB, toml string) *anypb.Any {
	t.Helper()
	any, err := anypb.New(&runtimeoptions.Options{ConfigBody: []byte(toml)})
	if err != nil {
		t.Fatal(err)
	}
	return any
}
