// Package procmask covers a container's /proc/driver/nvidia with a private,
// read-only copy that shows the granted GPUs and no other.
//
// Left alone, that directory shows every GPU of the host, lets root of the
// container write host-global driver state (registry, numa_status, capabilities),
// and its params file tells NVIDIA's libraries to make device nodes by
// themselves: with ModifyDeviceFiles other than 0, or an empty file, CUDA in a
// container creates the nodes of GPUs that were not granted.
//
// In: file contents read on the host. Out: a tmpfs, assembled while it is attached
// nowhere and made read-only, then attached in the mount namespace of a container
// between `runc create` and `runc start`. runc refuses mounts below /proc in
// config.json (checkProcMount), and an OCI hook would run where the host's root is
// still reachable.
//
// Attach enters a foreign mount namespace on a thread that is thrown away. It must
// never execute anything, never follow a symbolic or magic link, and never attach
// to anything that is not procfs (invariants I5, I8, I10; CVE-2019-16884,
// CVE-2025-52881).
package procmask
