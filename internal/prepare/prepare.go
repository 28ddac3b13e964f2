package prepare

import (
	"context"
	"errors"
	"slices"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
	gpuhost "github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host/device"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/state"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/gpumemory"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/probe"
)

// Options say what to do. With only Host set, Run makes missing nodes.
type Options struct {
	Host config.Host
	// LoadModules loads missing modules.
	LoadModules bool
	// Channels are the IMEX channels that get a node.
	Channels []int
	// Replace corrects existing nodes: those from an earlier load of a module, links and files in
	// their place, and other modes and owners.
	Replace bool
	// Ask asks the probe, to take back the limits of GPU memory that shims which were killed have set;
	// nil leaves them.
	Ask func(probe.Questions) probe.Answers
	// DryRun makes Run change nothing and report what it would do.
	DryRun bool
}

// Report says what Run found and did.
type Report struct {
	DryRun bool `json:"dry_run"`
	// PCI are the bus ids of the GPUs that need a driver.
	PCI     []string `json:"pci"`
	Modules []Module `json:"modules"`
	Nodes   []Node   `json:"nodes"`
	// Notes are for the operator.
	Notes []string `json:"notes"`
	// Ready reports whether a GPU container finds what it needs, or this host has no GPU; in a dry
	// run, whether that would hold after the real run.
	Ready bool `json:"ready"`
}

// States of a module or node; in a dry run, the state that the real run would lead to.
const (
	Present  = "present"  // it existed
	Made     = "made"     // it was made, or the module loaded
	Replaced = "replaced" // it was wrong and has been replaced
	Missing  = "missing"  // it does not exist; Fix says what to do
	Wrong    = "wrong"    // it exists and is still wrong
	Failed   = "failed"   // it could not be made
)

// Result reports what was done about a module or node.
type Result struct {
	State   string `json:"state"`
	Message string `json:"message,omitempty"`
	Fix     string `json:"fix,omitempty"`
}

// Module is a kernel module.
type Module struct {
	Name string `json:"name"`
	// Required reports whether GPU containers cannot start without it.
	Required bool `json:"required"`
	Result
}

// Node is a device node.
type Node struct {
	// Path is the path on the host, below dev-root.
	Path  string `json:"path"`
	Major uint32 `json:"major"`
	Minor uint32 `json:"minor"`
	// Mode is in octal digits.
	Mode string `json:"mode"`
	UID  uint32 `json:"uid"`
	GID  uint32 `json:"gid"`
	Result
}

func (r Result) good() bool { return r.State == Present || r.State == Made || r.State == Replaced }

// Run prepares this host. The error says what could not be read; the report says what could not be
// done.
func Run(ctx context.Context, o Options) (*Report, error) {
	r := &Report{
		DryRun: o.DryRun, PCI: []string{}, Modules: []Module{}, Nodes: []Node{}, Notes: []string{},
	}
	r.sweep(o)
	reason := nothingToPrepare(o.Host)
	if reason == "" {
		gpus, err := device.Display(o.Host)
		if err != nil {
			return nil, err
		}
		r.PCI = append(r.PCI, gpus...)
		if len(gpus) == 0 && !device.ModuleLoaded(o.Host, device.ModuleNVIDIA) {
			reason = "there is no NVIDIA GPU on the PCI bus of this host"
		}
	}
	if reason != "" {
		r.Notes, r.Ready = append(r.Notes, reason+": nothing to do"), true
		return r, nil
	}
	r.modules(ctx, o)
	inv, err := device.Discover(o.Host)
	switch {
	case errors.Is(err, device.ErrNoDriver):
		// The module's line says what to do.
		if o.DryRun && r.allGood() {
			r.Notes = append(r.Notes, "the nodes are not known before the modules are loaded")
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

// sweep takes back limits of GPU memory, and notes those that it cannot take back.
func (r *Report) sweep(o Options) {
	if o.Ask == nil || o.DryRun {
		return
	}
	st, err := state.Open(o.Host.StateDir, true)
	if err != nil {
		r.Notes = append(r.Notes, err.Error())
		return
	}
	for _, err := range (gpumemory.Host{State: st, Ask: o.Ask}).Sweep() {
		r.Notes = append(r.Notes, err.Error())
	}
}

// nothingToPrepare says why this program must not make the nodes of this host, "" if it may: they
// belong to another driver, or the host is a container.
func nothingToPrepare(h config.Host) string {
	found, err := gpuhost.Discover(h)
	switch {
	case err != nil:
	case found.Platform != "":
		return "the driver is that of " + gpuhost.PlatformTitle(found.Platform)
	case gpuhost.IsContainer(h, found.DriverVersion):
		// With all nodes it would have access to every GPU.
		return "this host is a container, which has the nodes that it was given"
	}
	return ""
}

func (r *Report) allGood() bool {
	return !slices.ContainsFunc(r.Modules, func(m Module) bool { return m.Required && !m.good() }) &&
		!slices.ContainsFunc(r.Nodes, func(n Node) bool { return !n.good() })
}
