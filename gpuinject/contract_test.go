package gpuinject

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/health"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host/device"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/request"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simdriver/sim"
)

// Each example in the tables of docs/contract.md is a test case: the container in the second column
// has the outcome in the third.
func TestContract(t *testing.T) {
	page, err := os.ReadFile("../docs/contract.md")
	check(t, err)
	tables, words := contractTables(t), contractWords(t)
	lines := strings.Split(string(page), "\n")
	for i, line := range lines {
		title, _, ok := strings.Cut(line, " | For example | Here | ")
		if !ok {
			continue
		}
		title = strings.TrimPrefix(title, "| ")
		tb, ok := tables[title]
		if !ok {
			t.Errorf("table %q is unknown, or there twice", title)
			continue
		}
		delete(tables, title)
		for _, line := range lines[i+2:] {
			if !strings.HasPrefix(line, "|") {
				break
			}
			tb.rows = append(tb.rows, contractRows(t, title, line, words)...)
		}
		if len(tb.rows) == 0 {
			t.Errorf("table %q has no row", title)
		}
		t.Run(title, tb.run)
	}
	for title := range tables {
		t.Errorf("the page has no table %q", title)
	}
}

// contractRows reads a line of the page, whose second column has one or more examples.
func contractRows(t *testing.T, title, line string, words map[string]func(*row)) (rows []row) {
	t.Helper()
	cells := strings.Split(strings.Trim(line, "|"), "|")
	if len(cells) != 3 && len(cells) != 4 {
		t.Fatalf("%d cells in %s", len(cells), line)
	}
	for example := range strings.SplitSeq(strings.TrimSpace(cells[1]), " or ") {
		r := row{name: strings.TrimSpace(cells[0] + example), want: strings.TrimSpace(cells[2])}
		r.setUp(t, title, example, words)
		rows = append(rows, r)
	}
	return rows
}

var variable = regexp.MustCompile(`^\w+=`)

// setUp reads an example: variables, the value of the table's variable, mounts, annotations, keys of
// the configuration, and words for everything else.
func (r *row) setUp(t *testing.T, title, example string, words map[string]func(*row)) {
	t.Helper()
	if title != "NVIDIA_DRIVER_CAPABILITIES" {
		title = "NVIDIA_VISIBLE_DEVICES"
	}
	for item := range strings.SplitSeq(example, "; ") {
		word, isWord := words[item]
		text, isQuoted := strings.CutPrefix(item, "`")
		text = strings.TrimSuffix(text, "`")
		key, value, _ := strings.Cut(text, "=")
		switch {
		case item == "":
		case isWord:
			word(r)
		case !isQuoted || strings.ContainsRune(text, '`'):
			t.Fatalf("%q is not among the words of this test", item)
		case strings.HasPrefix(text, "policy."), strings.HasPrefix(text, "container."):
			r.set(t, text)
		case strings.HasPrefix(text, "/"):
			r.add(mounting("/dev/null", text))
		case strings.Contains(key, "cdi.k8s.io"), strings.Contains(key, ".gpu-memory"), strings.Contains(key, "nvidia.gpu-memory"):
			r.add(annotated(key, value))
		case variable.MatchString(text):
			r.env = append(r.env, text)
		default:
			r.env = append(r.env, title+"="+text)
		}
	}
}

// add makes another change to the specification.
func (r *row) add(change func(*specs.Spec)) {
	if r.spec != nil {
		change = all(r.spec, change)
	}
	r.spec = change
}

// set sets a key of the configuration.
func (r *row) set(t *testing.T, key string) {
	before := r.config
	r.config = func(c *config.Config) {
		if before != nil {
			before(c)
		}
		check(t, c.Override([]byte(key)))
	}
}

// contractTables returns the tables of the page by title, without their rows.
func contractTables(t *testing.T) map[string]table {
	mig, tegra := newMIGHost(t), newHost(t, sim.Options{GPUs: 1})
	check(t, tegra.BecomeTegra(t.Context()))
	sick := newHost(t, sim.Options{GPUs: 4})
	sick.say(t, map[int]string{1: health.Refuse})
	gpu0 := devices("0")
	return map[string]table{
		"NVIDIA_VISIBLE_DEVICES":         {},
		"Device-list mounts":             {},
		"MIG devices":                    {host: mig, show: showMIG},
		"GPU 1 is sick":                  {host: sick},
		"Rights over MIG":                {host: mig, env: devices("all"), show: showMIG},
		"Tegra":                          {host: tegra, show: showTegra},
		"NVIDIA_DRIVER_CAPABILITIES":     {env: gpu0, show: showCapabilities},
		"Nodes by capability":            {env: gpu0, show: showNodes},
		"NVIDIA_REQUIRE_*":               {env: gpu0, show: showRequirements},
		"Other devices":                  {env: append(devices("0"), caps("utility")...), show: showNodes},
		"Sockets of daemons":             {env: gpu0, show: showSockets},
		"Other variables":                {env: gpu0, show: either(ignoredAny, "ignored with a warning", "")},
		"GPU memory":                     {host: newHost(t, sim.Options{GPUs: 4, Version: "615.78.08"}), env: gpu0, show: showMemory},
		"Who may ask by environment":     {},
		"Hooks in the specification":     {env: gpu0, show: either(lostHooks, "the hook is removed", "the hook stays")},
		"Nodes in the specification":     {show: either(hasNodeTwice, "a node twice", "no node twice")},
		"Specifications that CDI edited": {show: either(lostHooks, "NVIDIA's hooks are removed", "")},
		"/proc/driver/nvidia":            {env: gpu0, show: showProc},
		"CDI names":                      {show: showAsked},
		"Swarm's resources":              {},
		"Annotations":                    {show: showAsked},
	}
}

// contractWords returns the words of the page's second column and what they change.
func contractWords(t *testing.T) map[string]func(*row) {
	spec := func(changes ...func(*specs.Spec)) func(*row) {
		return func(r *row) { r.add(all(changes...)) }
	}
	on := func(h *testHost) func(*row) { return func(r *row) { r.host = h } }
	cdi := func(s *specs.Spec) { applyCDI(t, s, realCDI(t), "nvidia.com/gpu=1") }
	minor := simulated.GPUs[2].Minor
	node2 := all(withNode(simulated.Majors.GPU, minor), at(fmt.Sprintf("/dev/nvidia%d", minor)))
	mps := ""
	daemons := func(c *config.Config) {
		if mps == "" {
			_, mps = daemonsOf(t, c)
		}
		c.Host.MPSPipeDirectory = mps
	}
	tegra, thor := newHost(t, sim.Options{GPUs: 1}), newHost(t, sim.Options{GPUs: 1})
	check(t, tegra.BecomeTegra(t.Context()))
	tegra.change = func(f *device.Facts) {
		*f = device.Facts{CUDAOnly: true, CUDA: "12.6", GPUs: []device.GPUFacts{{Arch: "8.7"}}}
	}
	writeFile(t, filepath.Join(thor.Root, "etc/nv_tegra_release"), "# R38 (release)\n", 0o444)
	return map[string]func(*row){
		"`BROKEN`":                          func(r *row) { r.env = append(r.env, "BROKEN") },
		"`/dev/zero` there":                 spec(mounting("/dev/zero", request.DeviceListDir+"/0")),
		"a pod":                             spec(inPod()),
		"a pod with GPU 0":                  spec(inPod(0)),
		"a pod with GPU 2":                  spec(inPod(2)),
		"privileged":                        spec(privileged),
		"`CAP_SYS_ADMIN`":                   spec(admin),
		"the container `ctr`":               spec(annotated("io.kubernetes.cri.container-name", "ctr")),
		"a host with MIG":                   on(newMIGHost(t)),
		"a host of 11 GPUs":                 on(newHost(t, sim.Options{GPUs: 11, MIG: []sim.MIGDevice{{GPU: 10, GI: 9}}})),
		"driver 580":                        on(simulatedHost(t)),
		"a host with MIG and driver 615":    on(newHost(t, sim.Options{GPUs: 3, MIG: migDevices, Version: "615.78.08"})),
		"no `/dev/nvidia-fs*`":              on(newHost(t, sim.Options{GPUs: 1})),
		"`uverbs1` near GPU 0":              on(withAdapters(t)),
		"no `libnvidia-ml.so.1`":            on(tegra),
		"Thor with a discrete GPU":          on(thor),
		"they all run":                      func(r *row) { r.config = daemons },
		"`host.driver-root = \"/nowhere\"`": func(r *row) { r.config = func(c *config.Config) { c.Host.DriverRoot = "/nowhere" } },
		"`/usr/local/cuda/compat_orin` in the image": func(r *row) {
			r.image = func(root string) {
				writeFile(t, filepath.Join(root, "usr/local/cuda/compat_orin/libcuda.so.999.88"), "x", 0o644)
			}
		},
		"`nvidia-container-runtime-hook`": spec(withHook("/usr/bin/nvidia-container-runtime-hook")),
		"`nvidia-container-toolkit`":      spec(withHook("/usr/bin/nvidia-container-toolkit")),
		"`/opt/other/hook`":               spec(withHook("/opt/other/hook")),
		"`/dev/nvidiactl` as 1:3": spec(func(s *specs.Spec) {
			s.Linux.Devices = append(s.Linux.Devices, specs.LinuxDevice{Path: "/dev/nvidiactl", Type: "c", Major: 1, Minor: 3})
		}),
		"a pod with GPU 2 and its node":       spec(inPod(), node2),
		"`--device` of GPU 2's node":          spec(node2),
		"`ctr run --device nvidia.com/gpu=1`": spec(cdi),
		"`--device nvidia.com/gpu=1`":         spec(cdi),
		"`CDIDevices` of CRI":                 spec(cdi),
		"a specification without hooks":       spec(cdi, func(s *specs.Spec) { s.Hooks = nil }),
		"`--device nvidia.com/gds=all`":       spec(func(s *specs.Spec) { applyCDI(t, s, realCDI(t), "nvidia.com/gds=all") }),
	}
}

// withAdapters returns a host whose GPU 0 and adapter uverbs1 are below one PCI switch, and everything
// else below others.
func withAdapters(t *testing.T) *testHost {
	h := newHost(t, sim.Options{GPUs: 3, Others: sim.Others{MOFED: true}})
	placeInSysfs(t, h, "class/infiniband_verbs/uverbs0/device", "pci0000:4a/0000:4a:01.0/0000:4b:00.0", "1")
	placeInSysfs(t, h, "class/infiniband_verbs/uverbs1/device", "pci0000:17/0000:17:01.0/0000:18:00.0/0000:1a:00.0", "0")
	for i, at := range []string{"pci0000:17/0000:17:01.0/0000:18:01.0/0000:1b:00.0", "pci0000:3a/0000:3a:01.0/0000:3b:00.0", "pci0000:5c/0000:5c:01.0/0000:5d:00.0"} {
		placeInSysfs(t, h, "bus/pci/devices/"+h.GPUs[i].BusID, at, "0")
	}
	return h
}

// placeInSysfs makes a name in sysfs a link to a device of the PCI bus.
func placeInSysfs(t *testing.T, h *testHost, name, device, numa string) {
	t.Helper()
	at, link := filepath.Join(h.SysRoot, "devices", device), filepath.Join(h.SysRoot, name)
	mkdir(t, filepath.Dir(link))
	mkdir(t, filepath.Dir(at))
	if os.Rename(link, at) != nil { // the simulated host has no such device
		mkdir(t, at)
	}
	writeFile(t, filepath.Join(at, "numa_node"), numa+"\n", 0o444)
	symlink(t, at, link)
}

// showTegra shows the GPUs, the recognised platform, and forward compatibility.
func showTegra(p Plan) string {
	s := showGPUs(p)
	if p.Platform == "" {
		s += ", as on an ordinary host"
	}
	if p.Linker.Compat != "" {
		s += ", with " + p.Linker.Compat
	}
	return s
}

func showCapabilities(p Plan) string {
	if len(p.Capabilities) == 7 {
		return "all seven"
	}
	return strings.Join(p.Capabilities, ", ")
}

func showNodes(p Plan) string {
	nodes := furtherNodes(p)
	if len(nodes) == 0 {
		return "no further node"
	}
	return "`" + strings.Join(nodes, "`, `") + "`"
}

func showRequirements(p Plan) string {
	switch {
	case strings.Contains(strings.Join(p.Notes, "\n"), "not checked"):
		return "starts, nothing is checked"
	case len(p.Requirements) == 0:
		return "starts, nothing is required"
	}
	return "starts"
}

func showSockets(p Plan) string {
	return cmp.Or(strings.Join(p.Sockets, ", "), "no socket")
}

// showMemory shows the limits of the GPUs, each with its index if the container has several GPUs.
func showMemory(p Plan) string {
	var list []string
	for _, l := range p.Memory {
		text := l.String()
		for _, g := range p.GPUs {
			if len(p.GPUs) > 1 && g.UUID == l.UUID {
				text = fmt.Sprintf("GPU %d: %s", g.Index, text)
			}
		}
		list = append(list, text)
	}
	s := cmp.Or(strings.Join(list, "; "), "no limit")
	if ignoredAny(p) {
		s += ", ignored with a warning"
	}
	return s
}

// either adds one of two words to the GPUs.
func either(is func(Plan) bool, yes, no string) func(Plan) string {
	return func(p Plan) string {
		if is(p) {
			return showGPUs(p) + ", " + yes
		}
		return strings.TrimSuffix(showGPUs(p)+", "+no, ", ")
	}
}

func lostHooks(p Plan) bool { return len(p.RemovedHooks) > 0 }

func ignoredAny(p Plan) bool { return len(p.Ignored) > 0 }

// hasNodeTwice reports whether a node is in the specification under two entries.
func hasNodeTwice(p Plan) bool {
	seen := map[string]bool{}
	for _, d := range p.Changes.Edits.Devices {
		seen[d.Path] = true
	}
	return len(seen) < len(p.Changes.Edits.Devices)
}
