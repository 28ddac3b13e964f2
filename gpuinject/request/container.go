package request

import (
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/bundle"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/devnode"
)

// Annotations that containerd's CRI plugin writes (internal/cri/annotations).
const (
	annotationContainerType = "io.kubernetes.cri.container-type"
	annotationNamespace     = "io.kubernetes.cri.sandbox-namespace"
	annotationPod           = "io.kubernetes.cri.sandbox-name"
	annotationUID           = "io.kubernetes.cri.sandbox-uid"
	annotationContainer     = "io.kubernetes.cri.container-name"
)

// Container is the identity and the privileges of the container that asks, as containerd wrote
// them.
type Container struct {
	// Kubernetes is true if containerd's CRI plugin made the container, or if its cgroup is below
	// the kubelet's: another runtime, such as cri-dockerd, writes no annotations.
	Kubernetes bool
	// Sandbox is true for the pause container of a pod.
	Sandbox bool
	// Namespace, Pod and UID are the pod's; Name is the container's.
	Namespace, Pod, UID, Name string
	// Privileged containers have CAP_SYS_ADMIN in their bounding set, an unmasked /proc and no user
	// namespace: the result of `--privileged` and `privileged: true`. CAP_SYS_ADMIN alone is not
	// enough, unlike in NVIDIA's stack; in a user namespace, where a pod may ask for an unmasked
	// /proc, the capability is limited to the namespace.
	Privileged bool
	// Admin containers have CAP_SYS_ADMIN in their bounding set and no user namespace: the result
	// of `--cap-add SYS_ADMIN`. Every privileged container is one.
	Admin bool
	// UserNamespace is true if it runs in a user namespace: one of its own, or that of its pod,
	// which CRI names by path (WithPodNamespaces).
	UserNamespace bool
	// Nodes are the character devices that are already in the specification. DriverNodes is true if
	// some are the driver's.
	Nodes       []devnode.Number
	DriverNodes bool
}

// isKubepods reports whether a cgroup is below the one of the kubelet's pods, which --cgroup-root
// may move: /kubepods/burstable/pod<uid>/<id>, or kubepods-burstable-pod<uid>.slice:docker:<id>.
func isKubepods(cgroup string) bool {
	slice, _, _ := strings.Cut(cgroup, ":")
	return slices.ContainsFunc(strings.Split(slice, "/"), func(dir string) bool {
		name := strings.TrimSuffix(dir, ".slice")
		return name == "kubepods" || strings.HasPrefix(name, "kubepods-") || strings.Contains(name, "-kubepods-")
	})
}

// identify reads the identity of a container from its specification.
func identify(spec *bundle.Spec) Container {
	a := spec.Annotations
	c := Container{
		Kubernetes: a[annotationContainerType] != "" || isKubepods(spec.Linux.CgroupsPath), // guard: grant: pods of other runtimes
		Sandbox:    a[annotationContainerType] == "sandbox",
		Namespace:  a[annotationNamespace],
		Pod:        a[annotationPod],
		UID:        a[annotationUID],
		Name:       a[annotationContainer],
	}
	bounding := slices.Contains(spec.Process.Capabilities.Bounding, "CAP_SYS_ADMIN")
	c.UserNamespace = slices.ContainsFunc(spec.Linux.Namespaces, func(ns specs.LinuxNamespace) bool {
		return ns.Type == specs.UserNamespace
	})
	c.Admin = bounding && !c.UserNamespace                     // guard: privileged: no user namespace
	c.Privileged = c.Admin && len(spec.Linux.MaskedPaths) == 0 // guard: privileged: unmasked /proc
	for _, d := range spec.Linux.Devices {
		if d.Type == "c" || d.Type == "u" {
			c.Nodes = append(c.Nodes, devnode.Number{Major: d.Major, Minor: d.Minor})
			// guard: mask: driver's major number
			c.DriverNodes = c.DriverNodes || d.Major == devnode.DriverMajor || devnode.IsDriver(d.Path)
		}
	}
	return c
}
