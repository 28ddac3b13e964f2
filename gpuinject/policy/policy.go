package policy

import (
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/bundle"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/device"
)

// Annotations that containerd's CRI plugin writes (internal/cri/annotations).
const (
	annotationContainerType = "io.kubernetes.cri.container-type"
	annotationNamespace     = "io.kubernetes.cri.sandbox-namespace"
	annotationPod           = "io.kubernetes.cri.sandbox-name"
	annotationContainer     = "io.kubernetes.cri.container-name"
)

// Container is who asks.
type Container struct {
	// Kubernetes is set when containerd's CRI plugin made the container.
	Kubernetes bool
	// Sandbox is set for the pause container of a pod.
	Sandbox              bool
	Namespace, Pod, Name string
	// Privileged containers have CAP_SYS_ADMIN in their bounding set, nothing of
	// /proc masked and no user namespace: what `--privileged` and `privileged: true`
	// make. CAP_SYS_ADMIN alone is not enough, unlike in NVIDIA's stack, and in a
	// user namespace, where a pod may ask for an unmasked /proc, it ends at the
	// namespace.
	Privileged bool
	// Nodes are the character devices that the specification carries already.
	Nodes []Number
}

// Number is a device number.
type Number struct{ Major, Minor int64 }

// Identify reads who a container is from its specification.
func Identify(spec *bundle.Spec) Container {
	a := spec.Annotations
	c := Container{
		Kubernetes: a[annotationContainerType] != "",
		Sandbox:    a[annotationContainerType] == "sandbox",
		Namespace:  a[annotationNamespace],
		Pod:        a[annotationPod],
		Name:       a[annotationContainer],
	}
	bounding := spec.Process != nil && spec.Process.Capabilities != nil &&
		slices.Contains(spec.Process.Capabilities.Bounding, "CAP_SYS_ADMIN")
	if spec.Linux == nil {
		return c
	}
	userns := slices.ContainsFunc(spec.Linux.Namespaces, func(ns specs.LinuxNamespace) bool { return ns.Type == specs.UserNamespace })
	c.Privileged = bounding && len(spec.Linux.MaskedPaths) == 0 && !userns
	for _, d := range spec.Linux.Devices {
		if d.Type == "c" || d.Type == "u" {
			c.Nodes = append(c.Nodes, Number{d.Major, d.Minor})
		}
	}
	return c
}

// Grant is what a container may select from.
type Grant struct {
	// All is set where every GPU of the host may be selected.
	All bool
	// GPUs are those that may be selected where All is not set.
	GPUs []device.GPU
	// Reason says, for people, where the grant comes from.
	Reason string
	// Audit is set where enforcing would have given less: what it would have been.
	Audit string
}

// Allows tells whether the grant includes the GPU.
func (g Grant) Allows(gpu device.GPU) bool {
	return g.All || slices.ContainsFunc(g.GPUs, func(x device.GPU) bool { return x.BusID == gpu.BusID })
}

// Decide says what the container may select from. node returns the device number
// of a GPU's node.
func Decide(p config.Policy, c Container, gpus []device.GPU, node func(device.GPU) Number) Grant {
	switch {
	case !c.Kubernetes && (c.Privileged || p.AcceptEnvWhenUnprivileged):
		return Grant{All: true, Reason: "outside Kubernetes the environment grants"}
	case !c.Kubernetes:
		return Grant{Reason: "accept-env-when-unprivileged is off and the container is not privileged"}
	case p.Kubernetes == config.TrustEnv:
		return Grant{All: true, Reason: "kubernetes = \"trust-env\""}
	case c.Privileged:
		return Grant{All: true, Reason: "the container is privileged"}
	case c.Namespace != "" && slices.Contains(p.TrustedNamespaces, c.Namespace):
		return Grant{All: true, Reason: "namespace " + c.Namespace + " is trusted"}
	}
	var granted []device.GPU
	var names []string
	for _, gpu := range gpus {
		if slices.Contains(c.Nodes, node(gpu)) {
			granted = append(granted, gpu)
			names = append(names, gpu.UUID)
		}
	}
	reason := "no GPU was allocated to the container"
	if len(granted) > 0 {
		reason = "allocated by the kubelet: " + strings.Join(names, ",")
	}
	if p.Kubernetes == config.Audit {
		return Grant{All: true, Reason: "kubernetes = \"audit\"", Audit: reason}
	}
	return Grant{GPUs: granted, Reason: reason}
}
