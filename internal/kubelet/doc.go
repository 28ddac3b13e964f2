// Package kubelet asks the kubelet what it allocated to a pod: the PodResources API
// on its socket (k8s.io/kubelet/pkg/apis/podresources/v1, GA since Kubernetes 1.28).
//
// In: the socket and the pod's namespace and name, as containerd's CRI plugin wrote
// them. Out: the device ids of the resources under nvidia.com, by container; and, for
// nvidia-shimctl check, whether the kubelet answers at all. Only nvidia-shimctl, as the
// shim's probe process among other things, imports this package: a gRPC client would
// make the shim half as large again.
//
// It must never be given a name that a container chose, and never wait longer than
// its context allows.
package kubelet
