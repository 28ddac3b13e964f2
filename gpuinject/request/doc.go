// Package request determines what a container asks for: which GPUs, which driver capabilities and
// which other devices. It reads the container's environment, mounts and annotations once.
//
//	input := request.Read(&bundle.Spec)  // no configuration needed, never fails
//	if asks, why := input.Asks(); !asks { … }
//	req, err := input.Request(cfg)       // what it asks for under this configuration
//
// The rules follow NVIDIA's documented environment contract: NVIDIA_VISIBLE_DEVICES,
// NVIDIA_DRIVER_CAPABILITIES, NVIDIA_IMEX_CHANNELS, the switches NVIDIA_GDS, NVIDIA_GDRCOPY,
// NVIDIA_MOFED and NVIDIA_NVSWITCH, and the rule for images older than CUDA 9 (CUDA_VERSION without
// NVIDIA_REQUIRE_CUDA); the device list mounted below /var/run/nvidia-container-devices; CDI
// annotations; and devices that a CDI specification has already added to config.json.
//
// A Request gives no right to a device: package policy decides. This package reads nothing of the
// host. It must never resolve an identifier, open a file, or use a value of the container's
// environment as anything but data.
package request
