package request

// Environment variables of the contract.
const (
	EnvVisibleDevices = "NVIDIA_VISIBLE_DEVICES"
	EnvCapabilities   = "NVIDIA_DRIVER_CAPABILITIES"
	EnvCUDAVersion    = "CUDA_VERSION"
	EnvRequireCUDA    = "NVIDIA_REQUIRE_CUDA"
)

// Words of a list of devices: every device; the driver without a GPU; nothing at all.
const (
	All  = "all"
	none = "none"
	void = "void"
)

// DeviceListDir is where a device plugin with the strategy volume-mounts mounts /dev/null once per
// device: <dir>/<id>. It sets NVIDIA_VISIBLE_DEVICES to the directory itself.
const DeviceListDir = "/var/run/nvidia-container-devices"

// EnvCDI marks a container that the specification of `nvidia-shimctl cdi` edited. An image that
// sets it gets no device: only the nodes count.
const EnvCDI = "NVIDIA_SHIM_CDI"

// VoidMount is the item of the device list that empties it. nvidia-ctk puts it into every CDI
// specification since 1.20.2, so that device-list mounts do not ask again for what CDI gave.
const VoidMount = DeviceListDir + "/" + void
