package config

import (
	"slices"
)

// DefaultPath is read when EnvFile is not set; it may be missing.
const DefaultPath = "/etc/nvidia-shim/config.toml"

// EnvFile names, in the environment of containerd, another configuration file. A file named this
// way must exist.
const EnvFile = "NVIDIA_SHIM_CONFIG"

// Config is the whole configuration. Every path is absolute.
type Config struct {
	Host      Host      `toml:"host"`
	Container Container `toml:"container"`
	Policy    Policy    `toml:"policy"`
	Log       Log       `toml:"log"`
}

// Host holds the paths of this host.
type Host struct {
	// DriverRoot is where driver files are looked up: "/", or the root of a driver container such
	// as /run/nvidia/driver.
	DriverRoot string `toml:"driver-root"`
	// DriverLibraries are further directories to search, below DriverRoot.
	DriverLibraries []string `toml:"driver-libraries"`
	// DevRoot holds the device nodes: <DevRoot>/dev/nvidia0.
	DevRoot string `toml:"dev-root"`
	// ProcRoot is the procfs to read: <ProcRoot>/driver/nvidia, <ProcRoot>/devices.
	ProcRoot string `toml:"proc-root"`
	// SysRoot is the sysfs to read.
	SysRoot string `toml:"sys-root"`
	// StateDir holds the views and caches of this boot; root only.
	StateDir string `toml:"state-dir"`
	// ReadOnlyState leaves StateDir unchanged, for a preview.
	ReadOnlyState bool `toml:"-"`
	// LoadKernelModules lets `nvidia-shimctl prepare` load the driver's modules. The shim never
	// does.
	LoadKernelModules bool `toml:"load-kernel-modules"`
	// MPSPipeDirectory is CUDA_MPS_PIPE_DIRECTORY of this host's MPS control daemon.
	MPSPipeDirectory string `toml:"mps-pipe-directory"`
}

// Container holds what containers get and may ask for.
type Container struct {
	// DefaultCapabilities apply if NVIDIA_DRIVER_CAPABILITIES is unset or empty.
	DefaultCapabilities []string `toml:"default-capabilities"`
	// SupportedCapabilities bound what NVIDIA_DRIVER_CAPABILITIES may ask for: see Supported.
	SupportedCapabilities []string `toml:"supported-capabilities"`
	// Sockets are the daemons of this host whose sockets containers get.
	Sockets []string `toml:"sockets"`
	// AdditionalGIDs gives the process the groups of device nodes that only a group may use.
	AdditionalGIDs bool `toml:"additional-gids"`
	// MemoryLimit limits the memory of each GPU for a container that asks for no limit: see
	// memlimit.Parse.
	MemoryLimit string `toml:"memory-limit"`
	// OnPause is SuspendGPU or Freeze. An annotation may replace it for a container.
	OnPause string `toml:"on-pause"`
}

// Values of Container.OnPause: what pausing a container does.
const (
	// SuspendGPU moves the container's GPU memory to the host, gives the GPU back and freezes it.
	SuspendGPU = "suspend-gpu"
	// Freeze freezes the processes, which keep the GPU.
	Freeze = "freeze"
)

// Kubernetes policy modes.
const (
	// Enforce gives a pod's container the devices that its specification already carries;
	// environment variables only select among them.
	Enforce = "enforce"
	// Audit does what the environment asks for and logs what Enforce would refuse.
	Audit = "audit"
	// TrustEnv gives what the environment asks for.
	TrustEnv = "trust-env"
)

// Foreign hook policies.
const (
	// Replace removes NVIDIA's own OCI hooks: the shim injects the same GPUs itself.
	Replace = "replace"
	// Refuse fails the creation of a container that has such hooks.
	Refuse = "refuse"
)

// LeaveOut is the value of Policy.FaultyGPUs that gives the other GPUs of the host; Refuse is the
// other one.
const LeaveOut = "leave-out"

// Values of Policy.Health besides Refuse, which makes a sick GPU count as faulty.
const (
	// Off: nothing watches, and the shim does not read what a watcher wrote.
	Off = "off"
	// Warn: a container that gets a sick GPU starts with a warning.
	Warn = "warn"
)

// Values of Policy.MemoryLimits besides Enforce.
const (
	// Ignore limits no memory.
	Ignore = "ignore"
	// HAMi is Enforce, also for the variables of HAMi's library.
	HAMi = "hami"
)

// Which RDMA adapters a container gets that asks for the class as a whole.
const (
	// Near are those near one of its GPUs.
	Near = "near"
	// AllAdapters are all of the host.
	AllAdapters = "all"
)

// Policy holds who may have what.
type Policy struct {
	// Kubernetes is Enforce, Audit or TrustEnv, for containers that CRI created.
	Kubernetes string `toml:"kubernetes"`
	// TrustedNamespaces are the Kubernetes namespaces in whose pods the environment decides, for
	// monitoring agents and the device plugin itself. Only kube-system exists in every cluster; a
	// user who may create namespaces could take any other name.
	TrustedNamespaces []string `toml:"trusted-namespaces"`
	// KubeletSocket is the kubelet's PodResources socket. The kubelet is asked there if nothing
	// else says what was allocated to a pod.
	KubeletSocket string `toml:"kubelet-socket"`
	// AcceptEnvWithoutKubelet lets the environment of a pod's container decide if there is no
	// kubelet: neither its checkpoint nor a socket at KubeletSocket. Otherwise the container is
	// refused.
	AcceptEnvWithoutKubelet bool `toml:"accept-env-without-kubelet"`
	// AcceptVolumeMounts takes /dev/null mounted at /var/run/nvidia-container-devices/<id> as
	// request of that device, and as proof, as the device plugin's strategy volume-mounts makes it. It
	// is safe only if pods may not mount host paths.
	AcceptVolumeMounts bool `toml:"accept-volume-mounts"`
	// AcceptEnvWhenUnprivileged lets containers outside Kubernetes ask by environment.
	AcceptEnvWhenUnprivileged bool `toml:"accept-env-when-unprivileged"`
	// AllowFromEnvironment lists the classes of devices besides GPUs that any pod's container gets
	// if its environment asks for them.
	AllowFromEnvironment []string `toml:"allow-from-environment"`
	// RDMAAdapters is Near or AllAdapters: what NVIDIA_MOFED=enabled asks for. All adapters disturb
	// NCCL's choice of paths (GPU Operator 26.3.3).
	RDMAAdapters string `toml:"rdma-adapters"`
	// IgnoreIMEXChannels ignores every request for IMEX channels.
	IgnoreIMEXChannels bool `toml:"ignore-imex-channels"`
	// FaultyGPUs says what "all" means on a host with a faulty GPU: LeaveOut or Refuse.
	FaultyGPUs string `toml:"faulty-gpus"`
	// Health is Off, Warn or Refuse: what is done with a GPU that the watcher of this host calls
	// sick.
	Health string `toml:"health"`
	// MemoryLimits is Enforce, Ignore or HAMi: what limits the memory of GPUs.
	MemoryLimits string `toml:"memory-limits"`
	// MaxMemoryLimit bounds what containers may ask for, and limits those that ask for nothing.
	MaxMemoryLimit string `toml:"max-memory-limit"`
	// DisableRequire skips what images require by NVIDIA_REQUIRE_*.
	DisableRequire bool `toml:"disable-require"`
	// SwarmResources are the variables DOCKER_RESOURCE_<kind> whose values, if set, replace that of
	// NVIDIA_VISIBLE_DEVICES.
	SwarmResources []string `toml:"swarm-resources"`
	// SuspendIdleAfter is the least time without GPU work after which a container is suspended that
	// asks for it by annotation: see ParseIdle. "" suspends none.
	SuspendIdleAfter string `toml:"suspend-idle-after"`
	// AllowCheckpoints lets containers with GPUs outside Kubernetes be written to a checkpoint and
	// restored from one.
	AllowCheckpoints bool `toml:"allow-checkpoints"`
	// ForeignHooks is Replace or Refuse.
	ForeignHooks string `toml:"foreign-hooks"`
}

// Log holds how much the shim writes to containerd's log.
type Log struct {
	// Level is one of "error", "warn", "info", "debug".
	Level string `toml:"level"`
}

// Daemons whose sockets containers can be given.
const (
	Persistenced  = "persistenced"
	FabricManager = "fabricmanager"
	MPS           = "mps"
)

var sockets = []string{Persistenced, FabricManager, MPS}

// SwarmPrefix is the prefix of the variables that tell a task of Docker swarm which of a node's
// generic resources it owns: DOCKER_RESOURCE_GPU=GPU-…,GPU-…. The shim searches for it before it
// reads this configuration.
const SwarmPrefix = "DOCKER_RESOURCE_"

// Default returns the configuration of a host without a file.
func Default() *Config {
	return &Config{
		Host: Host{
			DriverRoot:       "/",
			DevRoot:          "/",
			ProcRoot:         "/proc",
			SysRoot:          "/sys",
			StateDir:         "/run/nvidia-shim",
			MPSPipeDirectory: "/tmp/nvidia-mps",
		},
		Container: Container{
			DefaultCapabilities:   []string{Compute, Utility},
			SupportedCapabilities: []string{},
			Sockets:               []string{},
			AdditionalGIDs:        true,
			OnPause:               Freeze,
		},
		Policy: Policy{
			Kubernetes:                Enforce,
			TrustedNamespaces:         []string{"kube-system"},
			KubeletSocket:             "/var/lib/kubelet/pod-resources/kubelet.sock",
			AcceptVolumeMounts:        true,
			AcceptEnvWhenUnprivileged: true,
			AllowFromEnvironment:      []string{},
			SwarmResources:            []string{},
			FaultyGPUs:                LeaveOut,
			Health:                    Warn,
			MemoryLimits:              Enforce,
			ForeignHooks:              Replace,
			RDMAAdapters:              Near,
		},
		Log: Log{Level: "info"},
	}
}

// Supported returns the capabilities that a container may ask for. If the operator names none, they
// are all of them, but for a pod not display, whose nodes can take over the host's screen (T42).
func (c Container) Supported(pod bool) []string {
	switch {
	case len(c.SupportedCapabilities) > 0:
		return slices.Clone(c.SupportedCapabilities)
	case pod:
		return slices.DeleteFunc(slices.Clone(capabilities), func(name string) bool { return name == Display })
	}
	return slices.Clone(capabilities)
}
