// Package allocation determines what the kubelet allocated to a container: from its checkpoint,
// which is bound to the pod's UID, and, if the checkpoint is not enough, from its API, to which the
// caller sends Pod.Question.
//
//	pod := allocation.Read(checkpoint.File, socket, container)
//	answer := pod.Answer(host, named, reply)
//
// Ids of other plugins' resources are not devices: only full names of GPUs and MIG devices count.
package allocation
