// Package prepare makes a node ready for GPU containers: it loads the driver's kernel modules, if
// requested, and makes missing device nodes. It implements "nvidia-shimctl prepare", which an
// operator or a systemd unit runs at boot; container creation changes no device of the host.
//
// The modules are those that nvidia-container-cli loads with --load-kmods, and only if a PCI device
// needs them. /sbin/modprobe of the driver root loads them, in a chroot unless that is "/", because
// modprobe knows dependencies, compression and signatures. The nodes are those that package device
// expects, with owner and mode from the driver's parameters. Each node is renamed into place when
// it is complete, and no link on the way is followed.
//
// A correct node is never changed, an existing one is replaced only if requested, and none is made
// if the driver's parameters forbid it (ModifyDeviceFiles).
package prepare
