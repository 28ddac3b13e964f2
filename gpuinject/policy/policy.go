package policy

import (
	"fmt"
	"slices"
	"strings"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host/device"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/request"
)

// resourceDomain is the domain of the resources that can be GPUs, by whatever name the device
// plugin gives them: nvidia.com/gpu, nvidia.com/gpu.shared, nvidia.com/mig-1g.5gb. NVIDIA's plugin
// uses no other domain, but other plugins use this one.
const resourceDomain = "nvidia.com/"

// IsGPUResource reports whether the devices of a resource can be GPUs. Their ids decide.
func IsGPUResource(name string) bool { return strings.HasPrefix(name, resourceDomain) } // guard: grant: resource's domain

// Allocation is what the kubelet allocated to a pod.
type Allocation struct {
	// Found is true if the kubelet knows the pod.
	Found bool `json:"found"`
	// Containers maps a container's name to its device ids. If it comes from the PodResources API,
	// init containers that run to completion and ephemeral ones are missing (kubernetes issue
	// 126765).
	Containers map[string][]string `json:"containers"`
}

// IDs returns the device ids of a container, sorted, and whether the container is listed. An
// unlisted one is an init container or an ephemeral one, and shares the devices of its pod.
func (a Allocation) IDs(container string) (all []string, listed bool) {
	all, listed = a.Containers[container]
	all = slices.Clone(all)
	if !listed {
		for _, ids := range a.Containers {
			all = append(all, ids...)
		}
	}
	slices.Sort(all)
	return slices.Compact(all), listed
}

// Allowed is what a container may select from; what it gets of that is package grant's.
type Allowed struct {
	// All is true if every device of the host may be selected; otherwise those of Set may.
	All bool
	Set device.Set
	// Reason says, for people, who allowed it.
	Reason string
}

// Allows reports whether the whole GPU may be selected.
func (g Allowed) Allows(gpu device.GPU) bool { return g.All || g.Set.HasGPU(gpu) }

// AllowsMIG reports whether the MIG device may be selected, by itself or as a part of a whole GPU.
func (g Allowed) AllowsMIG(in device.Instance) bool {
	return g.All || g.Set.HasMIG(in) ||
		slices.ContainsFunc(g.Set.GPUs, func(gpu device.GPU) bool { return gpu.Minor == in.Minor })
}

// AllowsAll reports whether every one of the devices may be selected.
func (g Allowed) AllowsAll(set device.Set) bool {
	return !slices.ContainsFunc(set.GPUs, func(gpu device.GPU) bool { return !g.Allows(gpu) }) &&
		!slices.ContainsFunc(set.MIG, func(in device.Instance) bool { return !g.AllowsMIG(in) })
}

// Nothing reports whether nothing may be selected.
func (g Allowed) Nothing() bool { return !g.All && g.Set.Empty() }

// EnvironmentDecides returns why the container's environment alone decides what it gets, or "" if it
// does not.
func EnvironmentDecides(p config.Policy, c request.Container) string {
	switch {
	// guard: grant: not by a pod's environment
	// guard: grant: accept-env-when-unprivileged
	case !c.Kubernetes && (c.Privileged || p.AcceptEnvWhenUnprivileged):
		return "outside Kubernetes the environment grants"
	case !c.Kubernetes:
		return ""
	case p.Kubernetes == config.TrustEnv: // guard: grant: trust-env
		return "kubernetes = \"trust-env\""
	case c.Privileged:
		return "the container is privileged"
	case c.Namespace != "" && slices.Contains(p.TrustedNamespaces, c.Namespace): // guard: grant: trusted namespaces
		return "namespace " + c.Namespace + " is trusted"
	}
	return ""
}

// MayHaveAll reports whether a container may select from every device of the host, whatever was
// allocated to it. environment is the result of EnvironmentDecides.
func MayHaveAll(p config.Policy, c request.Container, environment string) bool {
	return environment != "" || c.Kubernetes && p.Kubernetes == config.Audit
}

// NeedsKubelet reports whether only the kubelet can say what was allocated to a container without a
// device in its specification: the environment does not decide.
func NeedsKubelet(c request.Container, environment string) bool {
	return environment == "" && c.Kubernetes && c.Namespace != "" && c.Pod != "" // guard: grant: pod named
}

// KubeletAnswer is what the kubelet allocated to a container.
type KubeletAnswer struct {
	Allocation Allocation
	// NoKubelet is true if there is neither a checkpoint of a kubelet nor a socket to ask at.
	NoKubelet bool
	// Err is why it is not known what was allocated.
	Err error
	// PassedOver is an id that the kubelet allocated to the container and that names no GPU, or "".
	PassedOver string
	// Set holds the devices with the container's ids; SetErr says why this host does not have them.
	Set    device.Set
	SetErr error
}

// Decide returns what the container may select from, if environment is the result of
// EnvironmentDecides, and what the mode "enforce" would allow, which differs only in the mode
// "audit". inSpec are the devices whose nodes, or accepted device-list mounts, are in its
// specification; kubelet is used only if NeedsKubelet. An error means that this is not known, so
// that a container which asks for a GPU must not start.
func Decide(p config.Policy, c request.Container, environment string, inSpec device.Set, kubelet KubeletAnswer) (g, enforced Allowed, err error) {
	if environment != "" {
		g = Allowed{All: true, Reason: environment}
		return g, g, nil
	}
	enforced, err = allocated(p, c, inSpec, kubelet)
	if c.Kubernetes && p.Kubernetes == config.Audit { // guard: grant: audit
		if err != nil {
			enforced = Allowed{Reason: err.Error()}
		}
		return Allowed{All: true, Reason: "kubernetes = \"audit\""}, enforced, nil
	}
	return enforced, enforced, err
}

// allocated returns what was allocated to the container: the devices in its specification, else
// those that the kubelet names.
func allocated(p config.Policy, c request.Container, inSpec device.Set, kubelet KubeletAnswer) (Allowed, error) {
	if !inSpec.Empty() {
		return Allowed{Set: inSpec, Reason: "in the container's specification: " + inSpec.String()}, nil
	}
	if !c.Kubernetes {
		return Allowed{Reason: "accept-env-when-unprivileged is off and the container is not privileged"}, nil
	}
	if !NeedsKubelet(c, "") {
		return Allowed{Reason: "no GPU was allocated: the container's specification does not name its pod: have the device plugin pass device specifications (PASS_DEVICE_SPECS=true)"}, nil
	}
	_, listed := kubelet.Allocation.Containers[c.Name]
	nothing := kubelet.Set.Empty() && kubelet.SetErr == nil
	unknown := fmt.Sprintf("what was allocated to pod %s/%s is not known", c.Namespace, c.Pod)
	switch {
	case kubelet.NoKubelet && p.AcceptEnvWithoutKubelet: // guard: grant: missing kubelet
		return Allowed{All: true, Reason: "there is no kubelet at " + p.KubeletSocket + ": the environment grants"}, nil
	case kubelet.NoKubelet:
		return Allowed{}, fmt.Errorf("%s: there is no kubelet at %s: set policy.kubelet-socket to pod-resources/kubelet.sock in the kubelet's --root-dir, or on a host without a kubelet policy.accept-env-without-kubelet = true", unknown, p.KubeletSocket)
	case kubelet.Err != nil: // guard: grant: unknown allocation
		return Allowed{}, fmt.Errorf("%s: %w", unknown, kubelet.Err)
	case !kubelet.Allocation.Found:
		return Allowed{Reason: "no GPU was allocated: the kubelet does not know pod " + c.Namespace + "/" + c.Pod}, nil
	case nothing && !listed:
		// It may be an init container whose GPU no other container gets.
		return Allowed{Reason: "no GPU was allocated to a container that the kubelet lists, and init containers it does not list: have the device plugin pass device specifications (PASS_DEVICE_SPECS=true)"}, nil
	case nothing && kubelet.PassedOver != "":
		return Allowed{Reason: fmt.Sprintf("the kubelet allocated %.256q to the container, which is no GPU's UUID, and the device plugin's answer names no GPU by UUID: have it answer with UUIDs, or pass device specifications (PASS_DEVICE_SPECS=true)", kubelet.PassedOver)}, nil
	case nothing:
		return Allowed{Reason: "no GPU was allocated to the container, says the kubelet"}, nil
	case kubelet.SetErr != nil: // guard: grant: unknown devices
		return Allowed{}, fmt.Errorf("the kubelet allocated what this host does not have: %w", kubelet.SetErr)
	}
	return Allowed{Set: kubelet.Set, Reason: "allocated by the kubelet: " + kubelet.Set.String()}, nil
}

// DecideClass returns what a container that may have the GPUs of g may have of a class of devices
// besides GPUs, with a reason for people: all of nodes, which are those of the class that it asks
// for, or some. named is true if they are in a list of devices that an image cannot make: accepted
// device-list mounts, and annotations outside Kubernetes.
//
// If the environment decides about GPUs it decides about these too. Otherwise a class must be in
// allow-from-environment, or named, or the specification must already have a node of that kind.
// Such a node stands for the class, but not for other nodes that are allocated one by one: the
// container gets only the channels, adapters and switches in its specification.
func DecideClass(p config.Policy, c request.Container, g Allowed, class string, nodes []device.Node, named bool) (may []device.Node, all bool, reason string) {
	switch {
	case g.All:
		return nodes, true, g.Reason
	case named:
		return nodes, true, "device-list mounts"
	case slices.Contains(p.AllowFromEnvironment, class):
		return nodes, true, "allow-from-environment"
	}
	given := func(n device.Node) bool { return slices.Contains(c.Nodes, n.Number()) }
	if !slices.ContainsFunc(nodes, given) { // guard: grant: other classes
		return nil, false, "no device of that kind was allocated to the container, and policy.allow-from-environment has no \"" + class + "\""
	}
	// guard: grant: single devices of a class
	may = slices.DeleteFunc(slices.Clone(nodes), func(n device.Node) bool { return n.Individual && !given(n) })
	return may, false, "in the container's specification"
}

// MayManageMIG reports whether the container may have the rights to configure MIG or to monitor all
// MIG devices, and otherwise what it lacks. These rights affect every container of the host that
// has a GPU, so the environment alone never decides: in Kubernetes the container must be
// privileged or its namespace trusted; elsewhere it needs CAP_SYS_ADMIN, which NVIDIA's
// documentation requires.
func MayManageMIG(p config.Policy, c request.Container) (may bool, missing string) {
	if !c.Kubernetes {
		// guard: grant: MIG rights
		return c.Admin, "the container needs CAP_SYS_ADMIN (--cap-add SYS_ADMIN) and no user namespace"
	}
	// guard: grant: MIG rights of pods
	return c.Privileged || c.Namespace != "" && slices.Contains(p.TrustedNamespaces, c.Namespace),
		"the container must be privileged, or its namespace one of policy.trusted-namespaces"
}
