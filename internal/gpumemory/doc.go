// Package gpumemory sets limits of GPU memory for the cgroup of a container, and takes them back.
//
//	cgroup, err := gpumemory.Find(pid)              // the container's, while its init process waits
//	err = limits.Set(cgroup, limits)                // recorded first, then set and read back
//	err = limits.TakeBack(namespace, id)            // before the cgroup is removed
//
// A request that is not taken back before its cgroup is removed stays reserved in every cgroup
// above (NVIDIA's MPS documentation, memory partitioning). So each limited cgroup has a record in
// the state directory from before its limits are set until they are taken back, and Sweep takes
// back those of shims that have ended. If a cgroup is removed nevertheless, because the driver did
// not answer or because systemd removes it, its request is released in the cgroups above.
//
// The driver is asked by the probe: a GPU that hangs costs its time limit.
package gpumemory
