package prepare

import (
	"slices"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
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

func (r *Report) allGood() bool {
	return !slices.ContainsFunc(r.Modules, func(m Module) bool { return m.Required && !m.good() }) &&
		!slices.ContainsFunc(r.Nodes, func(n Node) bool { return !n.good() })
}
