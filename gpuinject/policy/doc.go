// Package policy decides which devices a container may have.
//
// In: the container's identity and privileges, as containerd wrote them, the device nodes that its
// specification already carries, and the GPUs of the host. Out: the GPUs that the container may
// select from, with a reason.
//
// Outside Kubernetes the caller of containerd is equivalent to root and chooses what the container
// gets by its environment. Under CRI the environment may come from the image, so it decides nothing
// (invariant I7; containerd's threat model, CRI-004): what the kubelet allocated is in the
// specification as device nodes, and variables only select among them.
//
// It must never base a decision on an image's labels, or on an annotation that containerd's CRI
// plugin did not write itself.
package policy
