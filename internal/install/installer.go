package install

import (
	"io"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/runtimeclass"
)

// Installer installs on a host, or removes what was installed.
type Installer struct {
	Host runtimeclass.Host
	// Options are what to install. Plan completes them by the daemon that it finds.
	runtimeclass.Options
	// TargetNamed and ConfigNamed say that the operator named the target, or its configuration
	// file.
	TargetNamed, ConfigNamed bool
	// Configs are the configuration files of containerd and Docker, by target.
	Configs map[string]string
	// Containerd is the program to ask for its version, "" for the one that is found. Versions are
	// what the operator says instead, by target.
	Containerd string
	Versions   map[string]string
	// Toolkit has the paths of a configuration of NVIDIA's toolkit, of which the first that is
	// there is carried over.
	Toolkit []string
	// CDIFile gets a CDI specification, which MakeCDI makes; "" for none.
	CDIFile string
	MakeCDI func() ([]byte, error)
	// DryRun changes nothing. Restart restarts the daemon if its configuration changes. All has
	// Uninstall remove every registration.
	DryRun, Restart, All bool
	// Out gets what changes, as text or JSON, and Err what systemctl prints.
	Out, Err io.Writer
	JSON     bool
}
