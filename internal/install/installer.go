package install

import (
	"io"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/runtimeclass"
)

// Installer installs on a host, or removes what was installed.
type Installer struct {
	Host runtimeclass.Host
	// Options select what to install. Plan completes them for the daemon that it finds.
	runtimeclass.Options
	// TargetNamed and ConfigNamed are true if the operator named the target or its configuration
	// file.
	TargetNamed, ConfigNamed bool
	// Configs are the configuration files of the daemons whose file can be named, by target.
	Configs map[string]string
	// Containerd is the program to ask for its version; "" for the one that is found. Versions are
	// the versions that the operator gave instead, by target.
	Containerd string
	Versions   map[string]string
	// Toolkit lists the possible paths of a configuration of NVIDIA's toolkit. The first that
	// exists is carried over.
	Toolkit []string
	// CDIFile is the path for the CDI specification that MakeCDI returns; "" for none.
	CDIFile string
	MakeCDI func() ([]byte, error)
	// With DryRun nothing changes. Restart restarts the daemon if its configuration changes. All
	// makes Uninstall remove every registration.
	DryRun, Restart, All bool
	// Out receives the changes, as text or JSON. Err receives warnings and the output of systemctl.
	Out, Err io.Writer
	JSON     bool
}
