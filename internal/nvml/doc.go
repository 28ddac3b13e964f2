// Package nvml asks NVIDIA's management library, libnvidia-ml, about the GPUs of this host. Only
// this package may load the library, and only nvidia-shim-nvml and nvidia-shimctl may link this
// package: NVML keeps the driver open, may hang in the kernel forever, and may start other
// programs.
//
// The library is loaded by the path that package driver found for the loaded kernel module, not by
// what LD_LIBRARY_PATH or the linker's cache offer. If host.dev-root is set, its dev directory is
// /dev for NVML, in a separate mount namespace. The thread that asks cannot execute a program, or
// make, rename or change a file: otherwise libnvidia-ml would run nvidia-modprobe if a device node
// is missing, but making nodes is the operator's decision.
//
// Suspend and Resume load libcuda as well, through which the driver moves the GPU memory of other
// processes to the host and back. These processes are hostile, so the whole program is confined: a
// program that does not link libraries calls Confine and executes nvidia-shim-nvml, which may then
// make the system calls of an allow-list only. So is the program that sets and reads memory limits of
// a cgroup: NVML takes them from a program with CAP_SYS_ADMIN, and writes to the cgroups.
//
// A property that a GPU does not have is absent from the answer, never zero. A program
// without cgo cannot load a library: it has only the types of the answers, and Confine.
package nvml
