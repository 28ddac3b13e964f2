package policy

import (
	"slices"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host/device"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/request"
)

// DecideOthers returns what a container whose grant of GPUs is g may have of a class of devices
// besides GPUs, with a reason for people: all of nodes, which are those of the class that it asks
// for, or some. named is true if a list of devices that an image cannot make asks for them:
// accepted device-list mounts, and annotations outside Kubernetes.
//
// If the environment grants GPUs it grants these too. Otherwise a class must be in
// allow-from-environment, or named, or the specification must already have a node of that kind.
// Such a node stands for the class, but not for another one that is handed out by itself: of
// channels, adapters and switches the container then has those of its specification.
func DecideOthers(p config.Policy, c request.Container, g Grant, class string, nodes []device.Node, named bool) (may []device.Node, all bool, reason string) {
	switch {
	case g.All:
		return nodes, true, g.Reason
	case named:
		return nodes, true, "device-list mounts"
	case slices.Contains(p.AllowFromEnvironment, class):
		return nodes, true, "allow-from-environment"
	}
	given := func(n device.Node) bool { return slices.Contains(c.Nodes, n.Number()) }
	if !slices.ContainsFunc(nodes, given) {
		return nil, false, "no device of that kind was allocated to the container, and policy.allow-from-environment has no \"" + class + "\""
	}
	may = slices.DeleteFunc(slices.Clone(nodes), func(n device.Node) bool { return n.Individual && !given(n) })
	return may, false, "in the container's specification"
}

// MayManageMIG reports whether the container may have the rights to configure MIG or to watch all
// MIG devices, and what is missing. They reach every container of the host that has a GPU, so the
// environment alone is no grant in any mode: in Kubernetes the container must be privileged or its
// namespace trusted, elsewhere it needs CAP_SYS_ADMIN, which NVIDIA's documentation asks for.
func MayManageMIG(p config.Policy, c request.Container) (may bool, missing string) {
	if !c.Kubernetes {
		return c.Admin, "the container needs CAP_SYS_ADMIN (--cap-add SYS_ADMIN) and no user namespace"
	}
	return c.Privileged || c.Namespace != "" && slices.Contains(p.TrustedNamespaces, c.Namespace),
		"the container must be privileged, or its namespace one of policy.trusted-namespaces"
}
