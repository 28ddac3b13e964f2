// Package systemd shows that a container keeps its GPUs, and gets no others, where
// systemd manages the cgroups, and where crun is the OCI runtime.
//
// The best-known bug of GPU containers is a GPU that vanishes after `systemctl daemon-reload`,
// `docker update` or the kubelet's CPU manager: device rules set behind the back of runc and
// systemd last until one of them writes its own rules again. Ours are in the bundle's
// configuration, so they are part of the scope unit. The tests do to a running container what
// administrators and kubelets do, look at what it can open after each, and do the same to a
// container whose rules were changed behind systemd's back, which loses its device.
//
// It holds tests only, and they need root. In: the binaries of bin/, bin/tools
// and bin/docker, and a Debian tree with systemd, dbus, crun and rpm, made by debootstrap from the
// mirror that the host's apt is configured with and kept beside the images of
// package images. Out: a machine, which
// is systemd as the first process of mount, PID, cgroup, UTS and IPC namespaces of
// the test's own, with containerd as a service of it.
//
// With the tag gpu one more test, TestOnRealGPUs…, boots a machine with the host's real driver.
// NVIDIA_SHIM_IMAGE_CACHE and NVIDIA_SHIM_GPU_PROGRAMS name the tree and the programs on a host
// that cannot make them.
//
// A machine shares the host's network and kernel. So it must never have a writable
// /proc/sys or /sys, the capabilities to load modules, to set the time or to
// configure auditing, or a service that would use them; and nothing of it may be
// left when its test ends.
package systemd
