package policy

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/bundle"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host/device"
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
	// Admin containers have CAP_SYS_ADMIN in their bounding set and are in no user
	// namespace: what `--cap-add SYS_ADMIN` makes, and every privileged container.
	Admin bool
	// Nodes are the character devices that the specification carries already.
	Nodes []Number
}

// Number is a device number.
type Number = device.Number

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
	c.Admin = bounding && !userns
	c.Privileged = c.Admin && len(spec.Linux.MaskedPaths) == 0
	for _, d := range spec.Linux.Devices {
		if d.Type == "c" || d.Type == "u" {
			c.Nodes = append(c.Nodes, Number{Major: d.Major, Minor: d.Minor})
		}
	}
	return c
}

// Allocation is what the kubelet allocated to a pod, as the probe reports it.
type Allocation struct {
	// Found says that the kubelet knows the pod.
	Found bool `json:"found"`
	// Containers maps a container's name to its device ids. Init containers that run
	// to completion and ephemeral ones are not in it (kubernetes issue 126765).
	Containers map[string][]string `json:"containers"`
}

// ErrNoKubelet says that there is no socket to ask at: this is no kubelet's node.
var ErrNoKubelet = errors.New("no kubelet socket")

// Host is what a decision needs to know of this host.
type Host struct {
	// Given are the devices whose nodes a specification carries.
	Given func([]Number) (device.Set, error)
	// Select turns device ids into devices.
	Select func(ids []string) (device.Set, error)
	// Mounted are the ids of accepted device-list mounts.
	Mounted []string
	// Kubelet asks for the pod's allocation. ErrNoKubelet where there is none.
	Kubelet func() (Allocation, error)
}

// Grant is what a container may select from.
type Grant struct {
	// All is set where every device of the host may be selected.
	All bool
	// Set are those that may be selected where All is not set.
	Set device.Set
	// Reason says, for people, where the grant comes from.
	Reason string
	// Enforced is what enforcing would have granted, where the mode is audit.
	Enforced *Grant
}

// Allows tells whether the grant includes the whole GPU.
func (g Grant) Allows(gpu device.GPU) bool { return g.All || g.Set.HasGPU(gpu) }

// AllowsMIG tells whether the grant includes the MIG device: by itself, or because the
// whole GPU was given when or although it had MIG devices.
func (g Grant) AllowsMIG(in device.Instance) bool {
	return g.All || g.Set.HasMIG(in) ||
		slices.ContainsFunc(g.Set.GPUs, func(gpu device.GPU) bool { return gpu.Minor == in.Minor })
}

// AllowsAll tells whether the grant includes every one of the devices.
func (g Grant) AllowsAll(set device.Set) bool {
	return !slices.ContainsFunc(set.GPUs, func(gpu device.GPU) bool { return !g.Allows(gpu) }) &&
		!slices.ContainsFunc(set.MIG, func(in device.Instance) bool { return !g.AllowsMIG(in) })
}

// Nothing tells whether nothing may be selected.
func (g Grant) Nothing() bool { return !g.All && g.Set.Empty() }

// EnvironmentGrants tells whether the container's environment alone is a grant.
func EnvironmentGrants(p config.Policy, c Container) bool { return environment(p, c) != "" }

// environment is the reason why the environment is a grant; empty where it is none.
func environment(p config.Policy, c Container) string {
	switch {
	case !c.Kubernetes && (c.Privileged || p.AcceptEnvWhenUnprivileged):
		return "outside Kubernetes the environment grants"
	case !c.Kubernetes:
		return ""
	case p.Kubernetes == config.TrustEnv:
		return "kubernetes = \"trust-env\""
	case c.Privileged:
		return "the container is privileged"
	case c.Namespace != "" && slices.Contains(p.TrustedNamespaces, c.Namespace):
		return "namespace " + c.Namespace + " is trusted"
	}
	return ""
}

// Decide says what the container may select from. An error means that this cannot
// be found out, so that a container which asks for a GPU must not start.
func Decide(p config.Policy, c Container, h Host) (Grant, error) {
	if reason := environment(p, c); reason != "" {
		return Grant{All: true, Reason: reason}, nil
	}
	enforced, err := allocated(p, c, h)
	if c.Kubernetes && p.Kubernetes == config.Audit {
		if err != nil {
			enforced = Grant{Reason: err.Error()}
		}
		return Grant{All: true, Reason: "kubernetes = \"audit\"", Enforced: &enforced}, nil
	}
	return enforced, err
}

// allocated finds what was allocated to the container: device nodes and device-list
// mounts of its specification, else what the kubelet says.
func allocated(p config.Policy, c Container, h Host) (Grant, error) {
	var given device.Set
	if len(h.Mounted) > 0 {
		mounted, err := h.Select(h.Mounted)
		if err != nil {
			return Grant{}, err
		}
		given = mounted
	}
	nodes, err := h.Given(c.Nodes)
	if err != nil {
		return Grant{}, err
	}
	given.Add(nodes)
	if !given.Empty() {
		return Grant{Set: given, Reason: "in the container's specification: " + names(given)}, nil
	}
	if !c.Kubernetes {
		return Grant{Reason: "accept-env-when-unprivileged is off and the container is not privileged"}, nil
	}
	if c.Namespace == "" || c.Pod == "" {
		return Grant{Reason: "no GPU was allocated: the container's specification does not name its pod"}, nil
	}
	a, err := h.Kubelet()
	switch {
	case errors.Is(err, ErrNoKubelet):
		return Grant{All: true, Reason: "there is no kubelet at " + p.KubeletSocket + ": the environment grants"}, nil
	case err != nil:
		return Grant{}, fmt.Errorf("what was allocated to pod %s/%s is not known: the kubelet at %s: %w", c.Namespace, c.Pod, p.KubeletSocket, err)
	case !a.Found:
		return Grant{Reason: "no GPU was allocated: the kubelet does not know pod " + c.Namespace + "/" + c.Pod}, nil
	}
	ids := a.ids(c.Name)
	if _, listed := a.Containers[c.Name]; len(ids) == 0 && !listed {
		// It may be an init container whose GPU no other container gets.
		return Grant{Reason: "no GPU was allocated to a container that the kubelet lists, and init containers it does not list: have the device plugin pass device specifications (PASS_DEVICE_SPECS=true)"}, nil
	}
	if len(ids) == 0 {
		return Grant{Reason: "no GPU was allocated to the container, says the kubelet"}, nil
	}
	if given, err = h.Select(ids); err != nil {
		return Grant{}, fmt.Errorf("the kubelet allocated what this host does not have: %w", err)
	}
	return Grant{Set: given, Reason: "allocated by the kubelet: " + names(given)}, nil
}

// ids are the devices of the container. One that the kubelet does not list is an
// init container or an ephemeral one, and shares what its pod has.
func (a Allocation) ids(container string) []string {
	listed, ok := a.Containers[container]
	if !ok {
		for _, ids := range a.Containers {
			listed = append(listed, ids...)
		}
	}
	out := make([]string, 0, len(listed))
	for _, id := range listed {
		// A time-slicing replica of a GPU: "GPU-…::3".
		id, _, _ = strings.Cut(id, "::")
		out = append(out, id)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

func names(set device.Set) string { return strings.Join(set.Names(), ",") }
