// Package device says which NVIDIA GPUs and MIG devices this host has and which
// device nodes a container needs to use some of them.
//
// In: procfs (<proc>/driver/nvidia/version, <proc>/driver/nvidia/gpus/*/information,
// <proc>/driver/nvidia/capabilities, <proc>/devices), sysfs (the DRM nodes of a PCI
// device) and the nodes themselves; for MIG UUIDs and "0:1" the Facts that the caller
// got from NVML. Out: an Inventory, the Set of devices that a list of ids selects, and
// verified Nodes.
//
//	inv, err := device.Discover(device.Roots{Proc: "/proc", Dev: "/", Sys: "/sys"})
//	set, err := inv.Select([]string{"0", "GPU-fef8089b"}, ask)
//	nodes, err := inv.Nodes(set, []string{"compute", "utility"})
//
// Package prepare makes the nodes that are missing, of what Expected lists.
//
// NVML is not used: a wedged GPU must not wedge a shim, and a library that is
// loaded into the shim is code that the driver's owner could replace. The GPU
// index is the order of PCI bus ids, which is NVML's order in practice; minor
// numbers follow probe order and may differ from it.
//
// A node is trusted only after lstat: a character device whose major is the one
// that <proc>/devices gives *now* to its driver and whose minor is the expected
// one. Majors are never constants: nvidia-uvm's and nvidia-caps' change with every
// module load.
//
// It must never open a device node, create one, load a kernel module, execute
// anything, or look into an image. Every file it reads is bounded.
package device
