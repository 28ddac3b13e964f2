// Package shim is the containerd shim io.containerd.nvidia.v2: containerd's own runc task
// service, embedded and wrapped.
//
// Service overrides Create (it gives the container its GPUs), Start and Delete (they complete what
// Create began), Exec (never before the mask is attached), Pause, Resume and Checkpoint (a container
// may give up its GPUs in the meantime), Update (devices are never updated), Shutdown (not during a
// Create), and the registration of the service. All other calls go to the embedded service. The
// table in states.go says what each call may do in each state of a container.
//
// In: ttrpc requests of containerd. Out: the same requests to the embedded service, with an
// edited bundle. Errors get their gRPC codes here and nowhere below.
//
// The process outlives every call and serves a whole pod. It must never panic on input, never
// wait for a child except through the reaper of containerd's shim library, and never do slow work
// in Delete.
package shim
