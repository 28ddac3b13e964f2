package grant

import (
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/devnode"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host/device"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host/driver"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/policy"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/verdict"
)

// Nodes are the device nodes that a container gets.
type Nodes struct {
	verdict.Log
	List []device.Node
	// Classes are the device classes besides GPUs, IMEX the numbers of the IMEX channels.
	Classes []string
	IMEX    []int
}

// Nodes decides which device nodes the container gets: those of its GPUs and those of other
// device classes. A class that it may not have is ignored, and the plan says so: an image that asks
// for more than its pod was allocated still starts with its GPUs.
func (g Grant) Nodes(c Container, h host.Host, files driver.Files) (n Nodes, err error) {
	ofGPUs, err := h.Nodes(g.Set, g.Request.Capabilities, files)
	if err != nil {
		return n, verdict.Precondition("%w", err)
	}
	if c.Input.EditedByCDI {
		n = keptClasses(c, h)
	}
	if g.Request.ChannelsIgnored {
		n.Ignore(devnode.IMEX, "policy.ignore-imex-channels is true")
	}
	for _, name := range g.Request.Classes {
		class, _ := devnode.ByName(name)
		if err := n.chooseClass(c, h, g, class); err != nil {
			n.List = nil
			return n, err
		}
	}
	n.List = append(ofGPUs, n.List...)
	return n, nil
}

// chooseClass adds the nodes of a class that the container may have.
func (n *Nodes) chooseClass(c Container, h host.Host, g Grant, kind devnode.Class) error {
	r, who, class := g.Request, c.Input.Container, kind.Name
	var channels []int
	if kind.Numbered && !r.AllChannels {
		channels = r.Channels
	}
	nodes, err := h.ClassNodes(class, channels)
	named := slices.Contains(r.TrustedClasses, class)
	may, all, reason := policy.DecideClass(c.Config.Policy, who, g.May, class, nodes, named)
	switch {
	case all && err != nil:
		return verdict.Precondition("%w", err)
	case !all && len(may) == 0:
		n.Ignore(class, reason)
		return nil
	}
	if missing := missingChannels(channels, may); len(missing) > 0 {
		n.Ignore(class+" "+strings.Join(missing, ","), "not among the channels that were allocated to the container")
	}
	if len(may) == 0 {
		n.Decide(class, "not given", "this host has no such device")
		n.Note("%s: this host has no such device", class)
		return nil
	}
	if g.May.All && !g.enforced.All {
		would, all, reason := policy.DecideClass(c.Config.Policy, who, g.enforced, class, nodes, named)
		if !all && len(would) < len(may) {
			n.Audit = append(n.Audit, class+": "+reason)
		}
	}
	if kind.NearGPUs && c.Config.Policy.RDMAAdapters == config.Near && !slices.Contains(r.Named, class) {
		may = nearAdapters(c, h, g, class, may, &n.Log)
	}
	if len(may) > 0 {
		n.addClass(kind, may, reason)
	}
	return nil
}

func (n *Nodes) addClass(class devnode.Class, nodes []device.Node, reason string) {
	n.Decide(class.Name, "given", "%s", reason)
	n.Classes = append(n.Classes, class.Name)
	n.List = append(n.List, nodes...)
	if class.Numbered {
		for _, node := range nodes {
			n.IMEX = append(n.IMEX, int(node.Minor))
		}
	}
}

// nearAdapters leaves out the RDMA adapters that are neither near the container's GPUs nor in its
// specification, and the connection manager if no adapter is left.
func nearAdapters(c Container, h host.Host, g Grant, class string, may []device.Node, log *verdict.Log) []device.Node {
	near, far := h.Near(may, g.GPUs)
	var names []string
	for _, n := range far {
		if hasNode(c, n) {
			near = append(near, n)
		} else {
			names = append(names, path.Base(n.Path))
		}
	}
	if len(names) == 0 {
		return may
	}
	log.Decide(class+" "+strings.Join(names, ","), "not given", "not near the container's GPUs: policy.rdma-adapters = %q gives every adapter", config.AllAdapters)
	if !slices.ContainsFunc(near, func(n device.Node) bool { return n.Individual }) {
		log.Note("%s: no adapter of this host is near the container's GPUs: policy.rdma-adapters = %q gives every adapter", class, config.AllAdapters)
		return nil
	}
	return near
}

// missingChannels returns the channels that have no node among nodes. A channel's number is the
// minor number of its node.
func missingChannels(channels []int, nodes []device.Node) (missing []string) {
	for _, n := range channels {
		if !slices.ContainsFunc(nodes, func(x device.Node) bool { return int(x.Minor) == n }) {
			missing = append(missing, strconv.Itoa(n))
		}
	}
	return missing
}

// keptClasses returns the nodes of other device classes that CDI added to the specification. Their
// files are already mounted.
func keptClasses(c Container, h host.Host) (kept Nodes) {
	for _, class := range devnode.Classes {
		if !class.InCDI {
			continue
		}
		// A node that is not as expected on this host stays as CDI added it.
		others, _ := h.ClassNodes(class.Name, nil)
		others = slices.DeleteFunc(others, func(n device.Node) bool { return !hasNode(c, n) })
		if len(others) > 0 {
			kept.addClass(class, others, "CDI put its nodes into the specification")
		}
	}
	return kept
}
