// Package prepare makes a node ready for GPU containers: it loads the driver's kernel
// modules, if told to, and makes device nodes that are missing.
//
// It is the work of `nvidia-shimctl prepare`, an explicit step of the operator's or of
// a systemd unit at boot. Never of the shim: a create executes no program and changes
// no device of the host.
//
// In: [host] of the configuration, and Options. Out: a Report with every module and
// every node, what was done, and what the operator has to do.
//
//	report, err := prepare.Run(ctx, prepare.Options{Host: cfg.Host})
//	if err == nil && !report.Ready { … }
//
// Modules are those that NVIDIA's own nvidia-container-cli loads with --load-kmods, and
// only where a PCI device is there that needs them; /sbin/modprobe of the driver root
// does it, in a chroot where that is not "/", because dependencies, compression and
// signatures are modprobe's affair. Nodes are those that package device expects, with
// owner and mode as the driver's parameters say. They appear under their name complete,
// by a rename, and no link on the way is followed.
//
// It must never touch a node that is as it should be, replace anything without being
// told to, or make nodes where the driver's parameters forbid it (ModifyDeviceFiles).
package prepare
