package runtimeclass

import (
	"path"
	"path/filepath"
)

// The daemons to register with, besides the Distributions.
const (
	Containerd = "containerd"
	Docker     = "docker"
)

// DefaultContainerdConfig is containerd's own default.
const DefaultContainerdConfig = "/etc/containerd/config.toml"

// DefaultDockerConfig is dockerd's own default.
const DefaultDockerConfig = "/etc/docker/daemon.json"

// Programs of NVIDIA's toolkit: dockerd offers --gpus if one is in its PATH, and never runs it.
const (
	CDIHookName     = "nvidia-cdi-hook"
	RuntimeHookName = "nvidia-container-runtime-hook"
)

// cdiHookLink is where install places a link by that name.
const cdiHookLink = "/usr/local/bin/" + CDIHookName

// Names of the shim. containerd derives the program's name from the runtime type.
const (
	RuntimeType = "io.containerd.nvidia.v2"
	ShimName    = "containerd-shim-nvidia-v2"
	CtlName     = "nvidia-shimctl"
	NVMLName    = "nvidia-shim-nvml"
	stockType   = "io.containerd.runc.v2"
)

// DefaultHandler is the default name of the handler and the RuntimeClass. NVIDIA's device plugin
// and operator charts use it as well.
const DefaultHandler = "nvidia"

// DefaultBinDir holds the installed programs. containerd records the shim's path in every bundle
// and needs it until the container is gone, so it must be a stable one.
const DefaultBinDir = "/usr/local/bin"

// PackageBinDir holds the programs that a package installed. They stay there.
const PackageBinDir = "/usr/bin"

// ServicePath is the PATH that systemd gives to services, and so to containerd, by default.
const ServicePath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// Programs are what an installation puts into its directory.
var Programs = []string{ShimName, CtlName, NVMLName}

// Places of the unit that runs `nvidia-shimctl prepare` at boot. The link is what systemctl enable
// makes.
const (
	UnitName = "nvidia-shim-prepare.service"
	UnitPath = "/etc/systemd/system/" + UnitName
	UnitLink = "/etc/systemd/system/multi-user.target.wants/" + UnitName
	// The unit of the deb and the rpm, whose programs are in PackageBinDir.
	packagedUnit = "/usr/lib/systemd/system/" + UnitName
)

// Units that keep the CDI specification up to date. The unit of prepare starts the first.
const (
	cdiPath    = "/etc/systemd/system/nvidia-shim-cdi.path"
	cdiService = "/etc/systemd/system/nvidia-shim-cdi.service"
)

// inServicePath returns the paths of a program in the PATH of services.
func inServicePath(program string) (paths []string) {
	for _, dir := range filepath.SplitList(ServicePath) {
		paths = append(paths, path.Join(dir, program))
	}
	return paths
}
