// Package shim is the containerd shim io.containerd.nvidia.v2: containerd's own
// runc task service, embedded and wrapped.
//
// It overrides Create (the GPUs go in here), Start and Delete (what Create left to
// them), Update (devices are never updated), and the registration of the service.
// Everything else is the embedded service's. Runtime options of any kind that
// containerd sends are translated to runc's at one place, for the task, for
// `start` and for `-info`.
//
// In: ttrpc requests of containerd. Out: the same requests to the embedded service,
// with an edited bundle. Errors become gRPC codes here and nowhere below.
//
// This process outlives every call and serves a whole pod: it must never panic on
// input, never wait for a child by other means than the reaper of containerd's shim
// package, and never do slow work in Delete.
package shim
