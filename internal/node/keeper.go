package node

import (
	"errors"
	"sync/atomic"
	"time"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/install"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/kubeapi"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/preview"
)

// Labels of a node. The operator sets RemoveLabel.
const (
	ReadyLabel   = "nvidia-shim.io/ready"
	VersionLabel = "nvidia-shim.io/version"
	RemoveLabel  = "nvidia-shim.io/remove"
)

// ErrProblem is the error of a round in which check found a problem. The problem has been printed.
var ErrProblem = errors.New("problem")

// Keeper keeps one node in its desired state.
type Keeper struct {
	// Installer installs on the host.
	Installer install.Installer
	// Planner has the shim's configuration, and Config is its file as the command line names it.
	Planner preview.Planner
	Config  string
	// CDIFile is the CDI specification to keep up to date, if it exists.
	CDIFile string
	// API is nil without a cluster.
	API *kubeapi.Node
	// Settings are the shim's configuration, in TOML; "" leaves it to the node. With FromToolkit the
	// options of NVIDIA's toolkit are carried over, below Settings.
	Settings    string
	FromToolkit bool
	// Uninstall removes everything, and keeps it removed.
	Uninstall bool

	// refused is the change after which check found a problem. findings is the text of the findings
	// that were printed last, and carried the text about the toolkit's options.
	refused, findings, carried string
	reported                   []event     // the last of each reason
	ready                      atomic.Bool // the last round succeeded
}

// event is an event of the node, at the time of its report.
type event struct {
	kind, reason, message string
	time                  time.Time
}
