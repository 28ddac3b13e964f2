package prepare

import (
	"context"
	"errors"
	"fmt"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host/device"
)

// Options say what to do. The zero value but for Host makes missing nodes.
type Options struct {
	// Host is where everything is.
	Host config.Host
	// LoadModules loads modules that are missing.
	LoadModules bool
	// Channels are the IMEX channels to have a node.
	Channels []int
	// Replace puts right what is there and is not as it should be: nodes of an earlier
	// load of a module, links and files in their place, other modes and owners.
	Replace bool
	// DryRun changes nothing and says what would be done.
	DryRun bool
}

// Report is what was found and done.
type Report struct {
	DryRun bool `json:"dry_run"`
	// PCI are the bus ids of the GPUs that need a driver.
	PCI     []string `json:"pci"`
	Modules []Module `json:"modules"`
	Nodes   []Node   `json:"nodes"`
	// Notes are for the operator.
	Notes []string `json:"notes"`
	// Ready says that a GPU container would find what it needs, or that there is no GPU
	// on this host. In a dry run: that it would after the real one.
	Ready bool `json:"ready"`
}

// What was done about a module or node, or would be in a dry run.
const (
	// Present: it was there.
	Present = "present"
	// Made: it was not there. Modules: it was loaded.
	Made = "made"
	// Replaced: it was there and not as it should be.
	Replaced = "replaced"
	// Missing: it is not there and stays so; Fix says what to do.
	Missing = "missing"
	// Wrong: it is there, is not as it should be, and stays so.
	Wrong = "wrong"
	// Failed: it could not be made.
	Failed = "failed"
)

// Module is a kernel module.
type Module struct {
	Name string `json:"name"`
	// Required modules are those without which no GPU container starts.
	Required bool   `json:"required"`
	State    string `json:"state"`
	Message  string `json:"message,omitempty"`
	Fix      string `json:"fix,omitempty"`
}

// Node is a device node.
type Node struct {
	// Path is the one on the host, dev-root included.
	Path  string `json:"path"`
	Major uint32 `json:"major"`
	Minor uint32 `json:"minor"`
	// Mode is in octal digits.
	Mode    string `json:"mode"`
	UID     uint32 `json:"uid"`
	GID     uint32 `json:"gid"`
	State   string `json:"state"`
	Message string `json:"message,omitempty"`
	Fix     string `json:"fix,omitempty"`
}

// good tells whether a state needs nothing of the operator.
func good(state string) bool { return state == Present || state == Made || state == Replaced }

// Run prepares this host. The error is of what could not be read at all; what could not
// be done is in the report.
func Run(ctx context.Context, o Options) (*Report, error) {
	r := &Report{DryRun: o.DryRun, Modules: []Module{}, Nodes: []Node{}, Notes: []string{}}
	roots := gpuinject.Roots(o.Host)
	if reason := nothingToPrepare(o.Host); reason != "" {
		r.PCI, r.Notes, r.Ready = []string{}, append(r.Notes, reason+": nothing to do"), true
		return r, nil
	}
	var err error
	if r.PCI, err = roots.Display(); err != nil {
		return nil, err
	}
	if r.PCI == nil {
		r.PCI = []string{}
	}
	if len(r.PCI) == 0 && !roots.ModuleLoaded(device.ModuleNVIDIA) {
		r.Notes = append(r.Notes, "there is no NVIDIA GPU on the PCI bus of this host: nothing to do")
		r.Ready = true
		return r, nil
	}
	r.modules(ctx, o, roots)
	inv, err := device.Discover(roots)
	switch {
	case errors.Is(err, device.ErrNoDriver):
		// The module's line says what to do.
		if o.DryRun && r.allGood() {
			r.Notes = append(r.Notes, "which nodes there are to be is not known before the modules are loaded")
		}
	case err != nil:
		return nil, err
	default:
		expected, err := inv.Expected(o.Channels)
		if err != nil {
			return nil, err
		}
		r.nodes(o, expected)
	}
	r.Ready = r.allGood()
	return r, nil
}

// nothingToPrepare says why this host's nodes are not the NVIDIA kernel module's, or not
// ours to make, or "".
func nothingToPrepare(h config.Host) string {
	inv, files, _ := gpuinject.FindHost(h)
	switch {
	case inv != nil && inv.Platform != "":
		return "the driver is that of " + inv.Platform.String()
	case files != nil && files.Nested:
		// With every node it would have every GPU.
		return "this host is a container, which has the nodes that it was given"
	}
	return ""
}

func (r *Report) allGood() bool {
	for _, m := range r.Modules {
		if m.Required && !good(m.State) {
			return false
		}
	}
	for _, n := range r.Nodes {
		if !good(n.State) {
			return false
		}
	}
	return true
}

// modules looks at the modules in the order in which they depend on each other.
func (r *Report) modules(ctx context.Context, o Options, roots device.Roots) {
	for _, m := range []Module{
		{Name: device.ModuleNVIDIA, Required: true},
		{Name: device.ModuleUVM, Required: true},
		{Name: device.ModuleModeset},
	} {
		switch {
		case roots.ModuleLoaded(m.Name):
			m.State = Present
		case !o.LoadModules:
			m.State = Missing
			m.Message = "it is not loaded, and prepare was not told to load modules"
			if !m.Required {
				m.Message = "it is not loaded; graphics and display need it, nothing else does"
			}
			m.Fix = "nvidia-shimctl prepare --load-modules, or host.load-kernel-modules = true"
		case o.DryRun:
			m.State = Made
			if err := checkModprobe(o.Host.DriverRoot); err != nil {
				m.State, m.Message, m.Fix = Failed, err.Error(), fixModprobe
			}
		default:
			m = load(ctx, o.Host.DriverRoot, roots, m)
		}
		r.Modules = append(r.Modules, m)
	}
}

func load(ctx context.Context, root string, roots device.Roots, m Module) Module {
	err := modprobe(ctx, root, m.Name)
	if err == nil && !roots.ModuleLoaded(m.Name) {
		err = fmt.Errorf("modprobe %s ended well, and the module is not loaded", m.Name)
	}
	if err != nil {
		m.State, m.Message, m.Fix = Failed, err.Error(), fixModprobe
		return m
	}
	m.State = Made
	return m
}
