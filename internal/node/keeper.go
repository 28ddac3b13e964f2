package node

import (
	"errors"
	"sync/atomic"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/install"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/kubeapi"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/preview"
)

// Labels of a node. Its operator sets the last one.
const (
	ReadyLabel   = "nvidia-shim.io/ready"
	VersionLabel = "nvidia-shim.io/version"
	RemoveLabel  = "nvidia-shim.io/remove"
)

// ErrProblem is the error of a round in which check found a problem, which was printed.
var ErrProblem = errors.New("problem")

// Keeper keeps one node as it is meant to be.
type Keeper struct {
	// Installer installs on the host.
	Installer install.Installer
	// Planner has the shim's configuration, and Config is its file as the command line names it.
	Planner preview.Planner
	Config  string
	// CDIFile is the CDI specification to keep up to date, if it is there.
	CDIFile string
	// API is nil without a cluster.
	API *kubeapi.Node
	// Uninstall removes everything, and keeps it removed.
	Uninstall bool

	// refused is the change after which check found a problem, and findings are those that were
	// printed last.
	refused, findings string
	ready             atomic.Bool // the last round succeeded
}
