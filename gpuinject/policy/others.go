package policy

import (
	"slices"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host/device"
)

// Others is what a container may have of a class of devices besides GPUs.
type Others struct {
	// All is set where it may have the whole class, or of IMEX what it asks for.
	All bool
	// Nodes are those that it may have where All is not set.
	Nodes []device.Other
	// Reason says, for people, where the grant comes from or why there is none.
	Reason string
}

// DecideOthers says what a container whose grant of GPUs is g may have of a class.
// nodes are the host's nodes of that class, and mounted says that device-list mounts
// ask for them (security.md 3.3, rule 4).
//
// Where the environment grants GPUs it grants these too. Elsewhere a class needs to be
// in allow-from-environment, or mounted, or a node of that kind must be in the
// specification already. Such a node stands for the class, but not for another one
// that is handed out by itself: of channels, adapters and switches a container then has
// those of its specification.
func DecideOthers(p config.Policy, c Container, g Grant, class string, nodes []device.Other, mounted bool) Others {
	switch {
	case g.All:
		return Others{All: true, Reason: g.Reason}
	case mounted:
		return Others{All: true, Reason: "device-list mounts"}
	case slices.Contains(p.AllowFromEnvironment, class):
		return Others{All: true, Reason: "allow-from-environment"}
	}
	given := func(n device.Other) bool {
		return slices.Contains(c.Nodes, Number{Major: int64(n.Major), Minor: int64(n.Minor)})
	}
	if !slices.ContainsFunc(nodes, given) {
		return Others{Reason: "no device of that kind was allocated to the container, and policy.allow-from-environment has no \"" + class + "\""}
	}
	return Others{
		Nodes:  slices.DeleteFunc(slices.Clone(nodes), func(n device.Other) bool { return n.One && !given(n) }),
		Reason: "in the container's specification",
	}
}
