// Package podresources asks the kubelet what it allocated to a pod: the PodResources API on its
// socket (k8s.io/kubelet/pkg/apis/podresources/v1, GA since Kubernetes 1.28).
//
// Allocated returns the device ids of the resources under nvidia.com, by container, for the pod
// with a given name, whatever its UID. The kubelet's checkpoint, which package gpuinject/kubelet
// reads, knows UIDs and takes precedence. Pods, for nvidia-shimctl check, lists all pods. The shim
// must not link this package: a gRPC client would make it half as large again.
//
// The names of pods must come from containerd, never from a container, and no call takes longer
// than its context allows.
package podresources
