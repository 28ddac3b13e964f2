// Package kubelet determines what the kubelet allocated to a container: from its device manager's
// checkpoint, which is bound to the pod's UID and includes init containers, and, if that is not
// enough, from its API, to which the caller sends Pod.Question.
//
//	pod := kubelet.Read(kubelet.CheckpointFile, socket, container)
//	answer := pod.Answer(host, named, reply)
//
// Ids of other plugins' resources are not devices: only full names of GPUs and MIG devices count.
//
// The kubelet writes the checkpoint when it admits a pod, before any container of the pod is
// created, and a pod whose write fails is not admitted: pkg/kubelet/cm/devicemanager of Kubernetes.
// It replaces the file by rename after fsync, so a reader sees the old state or the new one, never
// a part. Another process can still have damaged it, and a later kubelet can use another format: a
// file that is not exactly in the known format is an error, and the caller asks elsewhere.
//
// The checksum in the file is not checked. It is FNV-32 over a dump of the kubelet's own Go types,
// with their names, so it can change with any version of the kubelet; it finds damage, which the
// rename already excludes, and no forgery, which owner and mode exclude.
//
// If two updates of the kubelet cross, the older state can stay in the file until the next write. A
// container then has less than was allocated to it, never what another pod's UID has.
//
// The package must never read a file that users other than root can write, and asks no process.
package kubelet
