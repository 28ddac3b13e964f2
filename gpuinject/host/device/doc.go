// Package device lists the NVIDIA GPUs and MIG devices of this host and finds the device nodes that
// a container needs to use some of them.
//
// It reads procfs, sysfs and the nodes themselves. MIG UUIDs and "0:1" need the Facts that the
// caller got from NVML: a wedged GPU must not wedge a shim, and the shim must not execute code that
// belongs to the driver.
//
//	inv, err := device.Discover(cfg.Host)
//	set, err := inv.Select([]string{"0", "GPU-fef8089b"}, device.Facts{})
//	nodes, err := inv.Nodes(set, []string{"compute", "utility"})
//
// The GPU index is the order of PCI bus ids, which is NVML's order in practice; minor numbers
// follow probe order and may differ from it.
//
// A node is trusted only after lstat: it must be a character device with the major number that
// <proc>/devices lists for its driver now, and with the expected minor number. Majors are never
// constants: those of nvidia-uvm and nvidia-caps change with every module load.
//
// The package never opens or creates a device node, loads a kernel module, or executes anything.
// Every file that it reads is bounded.
package device
