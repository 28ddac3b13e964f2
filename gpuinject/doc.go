// Package gpuinject turns a container's request for NVIDIA GPUs into edits of its
// OCI configuration.
//
// It is a short list of steps over plain data, in the order of the design:
//
//	Examine   bundle, request      what does the container ask for; nil: not our business
//	Resolve   host, policy, requirements, nodes, driver files: what it gets, or why not
//	Inject    image, view, linker, edit: the changes, in the bundle and the image
//	Begin     the record, and the mask over /proc/driver/nvidia, while runc creates
//	Attach    the mask goes on, between runc create and start
//
// The caller is the shim, which owns the life of the container, or a tool that
// shows what would happen. In: a bundle directory, a mounted root file system and
// the configuration. Out: an edited config.json, a record of what was done and why
// (nvidia.json beside it), and a mask to attach.
//
// Nothing below this package imports containerd, executes a program or uses NVML.
package gpuinject
