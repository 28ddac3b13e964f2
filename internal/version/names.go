package version

// The names of the programs of a build.
const (
	Shim = "containerd-shim-nvidia-v2"
	Ctl  = "nvidia-shimctl"
	NVML = "nvidia-shim-nvml" // the one that loads NVML
)
