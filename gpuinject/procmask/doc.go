// Package procmask covers a container's /proc/driver with a private, read-only directory that
// shows the granted GPUs and no other.
//
// Without it, /proc/driver/nvidia shows every GPU of the host and lets root in the container write
// global driver state of the host (registry, numa_status, capabilities). Its params file tells
// NVIDIA's libraries whether to make device nodes: unless ModifyDeviceFiles is 0, CUDA in a
// container creates the nodes of GPUs that were not granted. The mask does not cover just
// /proc/driver/nvidia, because the kernel detaches a mount there when the driver is loaded again.
//
// The mask is a tmpfs that is attached in the container's mount namespace between `runc create` and
// `runc start`: runc refuses mounts below /proc in config.json (checkProcMount), and an OCI hook
// would run while the host's root is still reachable. In a container that is restored from a
// checkpoint, CRIU mounts it before the processes run. Attach executes nothing in the namespace,
// follows no symbolic or magic link, and attaches only to procfs (invariants I5, I8, I10;
// CVE-2019-16884, CVE-2025-52881).
package procmask
