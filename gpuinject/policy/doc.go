// Package policy decides who may have what.
//
// In: the container's identity and privileges, as containerd wrote them, the device nodes that its
// specification already carries, and the GPUs of the host. Out: the GPUs that the container may
// select from, with a reason.
//
// Outside Kubernetes the caller of containerd is as good as root and says with the environment what
// the container gets. Under CRI the environment may come from the image, so it is no grant
// (invariant I7; containerd's threat model, CRI-004): what the kubelet allocated is in the
// specification as device nodes, and variables only select among them.
//
// It must never take a decision from an image's labels, or from an annotation that containerd's CRI
// plugin did not write itself.
package policy
