package runtimeclass

import (
	"path"
	"path/filepath"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/version"
)

// Types of runtimes, of this shim and of runc. containerd derives the program's name from the runtime type.
const (
	RuntimeType = "io.containerd.nvidia.v2"
	stockType   = "io.containerd.runc.v2"
)

// DefaultHandler is the default name of the handler and the RuntimeClass. NVIDIA's device plugin
// and operator charts use it as well.
const DefaultHandler = "nvidia"

// DefaultBinDir holds the installed programs. containerd records the shim's path in every bundle
// and needs it until the container is gone, so the path must be stable.
const DefaultBinDir = "/usr/local/bin"

// PackageBinDir holds the programs that a package installed. They stay there.
const PackageBinDir = "/usr/bin"

// ServicePath is the PATH that systemd gives to services, and so to containerd, by default.
const ServicePath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// Programs are the programs that an installation copies to its directory.
var Programs = []string{version.Shim, version.Ctl, version.NVML}

// Paths of the unit that runs `nvidia-shimctl prepare` at boot. UnitLink is the link that systemctl
// enable creates.
const (
	UnitName = "nvidia-shim-prepare.service"
	UnitPath = "/etc/systemd/system/" + UnitName
	UnitLink = "/etc/systemd/system/multi-user.target.wants/" + UnitName
	// packagedUnit is the unit in the deb and the rpm, whose programs are in PackageBinDir.
	packagedUnit = "/usr/lib/systemd/system/" + UnitName
)

// Units that keep the CDI specification up to date. The prepare unit starts cdiPath.
const (
	cdiPath    = "/etc/systemd/system/nvidia-shim-cdi.path"
	cdiService = "/etc/systemd/system/nvidia-shim-cdi.service"
)

// inServicePath returns the paths that a program can have in ServicePath.
func inServicePath(program string) (paths []string) {
	for _, dir := range filepath.SplitList(ServicePath) {
		paths = append(paths, path.Join(dir, program))
	}
	return paths
}

// DropInName is the name of our file in a directory of imports. It sorts after names that begin
// with digits, such as 99-nvidia.toml of NVIDIA's toolkit: the last file wins.
const DropInName = "nvidia-shim.toml"

// Containerd is the name of containerd, and DefaultContainerdConfig its own default.
const (
	Containerd              = "containerd"
	DefaultContainerdConfig = "/etc/containerd/config.toml"
)

// Programs of NVIDIA's toolkit: dockerd offers --gpus if one is in its PATH, and never runs it.
const (
	CDIHookName     = "nvidia-cdi-hook"
	RuntimeHookName = "nvidia-container-runtime-hook"
)

// cdiHookLink is where install creates a link with the name CDIHookName.
const cdiHookLink = "/usr/local/bin/" + CDIHookName
