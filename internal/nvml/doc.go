// Package nvml asks NVIDIA's management library, libnvidia-ml, about the GPUs of this host. Only it
// may load the library, and only nvidia-shim-nvml and nvidia-shimctl may link this package: NVML
// keeps the driver open, may hang in the kernel forever, and may start other programs.
//
// The library is the one that package driver found for the loaded kernel module, by its path, and
// not what LD_LIBRARY_PATH or the linker's cache offer. With a host.dev-root, its dev directory is
// /dev for NVML, in a mount namespace of its own. The thread that asks can execute no program and
// make, rename or change no file: by itself libnvidia-ml runs nvidia-modprobe if a device node is
// missing, but to make nodes is the operator's decision.
//
// Suspend and Resume load libcuda instead, by which the driver moves the GPU memory of other
// processes to the host and back.
//
// A property that a GPU does not have is absent from the answer, never zero. A program
// without cgo cannot load a library: Linked is false, and every question is an error.
package nvml
