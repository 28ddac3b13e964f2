// Package procmask covers a container's /proc/driver with a private, read-only directory that
// shows the granted GPUs and no other.
//
// Without it, /proc/driver/nvidia shows every GPU of the host and lets root of the container write
// host-global driver state (registry, numa_status, capabilities). Its params file tells NVIDIA's
// libraries to make device nodes by themselves: with ModifyDeviceFiles other than 0, or an empty
// file, CUDA in a container creates the nodes of GPUs that were not granted. The mask is not on
// /proc/driver/nvidia itself: the kernel detaches a mount there when the driver is loaded again.
//
// The mask is a tmpfs that is attached in the container's mount namespace between `runc create` and
// `runc start`: runc refuses mounts below /proc in config.json (checkProcMount), and an OCI hook
// would run while the host's root is still reachable. In a container that is restored from a
// checkpoint CRIU mounts it, before the processes run. Attach never executes anything there, follows
// no symbolic or magic link, and attaches to nothing that is not procfs (invariants I5, I8, I10;
// CVE-2019-16884, CVE-2025-52881).
package procmask
