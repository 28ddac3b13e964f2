// Package allocation finds out what the kubelet allocated to a container: by its checkpoint, which
// is bound to the pod's UID, and, if that does not say it all, by its API, to which the caller puts
// Pod.Question.
//
//	pod := allocation.Read(checkpoint.File, socket, container)
//	answer := pod.Answer(host, named, reply)
//
// Ids of other plugins' resources are no devices: only full names of GPUs and MIG devices count.
package allocation
