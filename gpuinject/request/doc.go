// Package request says what a container asks for: which GPUs, which driver
// capabilities and which other devices, read from its environment and mounts.
//
// In: the environment of the container (process.env of the OCI configuration) and
// the operator's bounds. Out: a Request, plain data, or an error that quotes what
// was asked. The rules are those of NVIDIA's documented environment contract:
// NVIDIA_VISIBLE_DEVICES and NVIDIA_DRIVER_CAPABILITIES, NVIDIA_IMEX_CHANNELS and
// the switches NVIDIA_GDS, NVIDIA_GDRCOPY, NVIDIA_MOFED and NVIDIA_NVSWITCH, and the
// rule for images older than CUDA 9 (CUDA_VERSION without NVIDIA_REQUIRE_CUDA).
//
// A Request is a wish, never a grant: package policy decides. This package knows
// nothing of the host; it must never resolve an identifier, read a file or use a
// value of the container's environment as anything but data.
package request
