package grant

import (
	"cmp"
	"path"
	"slices"
	"strings"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/devnode"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host/device"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host/driver"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/policy"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/question"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/request"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/verdict"
)

// takeOver takes the devices that CDI added to the specification: they are asked for, and allowed.
// Nodes are identified by their device numbers, not by their names.
func takeOver(c Container, h host.Host, ask question.Ask) (Grant, error) {
	g := Grant{Request: c.Request}
	err := checkStale(c, h)
	if err != nil {
		return g, err
	}
	if g.Set, err = h.Given(c.Input.Container.Nodes); err != nil {
		return g, verdict.Precondition("%s: %w", c.Request.Reason, err)
	}
	// guard: grant: no faulty GPU by CDI
	if err := h.GivenFaulty(c.Input.Container.Nodes); err != nil && !c.Input.Container.Privileged {
		return g, verdict.Precondition("%s: %w", c.Request.Reason, err)
	}
	for _, name := range []string{"config", "monitor"} {
		// A host without MIG has no such right.
		if right, err := h.Management(name); err == nil && hasCapability(c, h, right) {
			g.Set.Manage = append(g.Set.Manage, right)
			g.MIGRights = append(g.MIGRights, name)
		}
	}
	a := askAll(c, h, "", true, nil, ask)
	g.Set.MIG = h.Annotate(g.Set.MIG, a.kept.Facts)
	g.GPUs = h.Visible(g.Set)
	g.May = policy.Allowed{Set: g.Set, Reason: "taken over from CDI: " + cmp.Or(g.Set.String(), "no GPU")}
	g.enforced = g.May
	g.decideAllowed()
	g.Decide("capabilities", strings.Join(c.Request.Capabilities, ","), "%s", c.Request.CapabilitiesReason)
	r := c.Request
	r.Devices = g.Set.Names()
	g.choose(h, r, a)
	g.decideDevices(h)
	return g, g.checkRequirements(c, h, a.kept.Facts, a.factsErr)
}

// checkStale refuses a container whose specification has a node of the driver, of GDRCopy or of an
// RDMA adapter with a major number that the host's node of that path does not have: most majors are
// assigned when a module is loaded, and a CDI file with numbers outlives the boot. Another minor
// number alone is a node by another name.
func checkStale(c Container, h host.Host) error {
	for _, d := range c.Devices {
		name := path.Clean(d.Path)
		given := devnode.IsDriver(name) || devnode.IsOfClass(name)
		if !given || d.Type != "c" && d.Type != "u" {
			continue
		}
		n, err := device.StatNode(path.Join(h.Config.DevRoot, name))
		if err == nil && int64(n.Major) != d.Major { // guard: devices: numbers of this boot
			return verdict.Precondition("%s: it has %s as c %d:%d, and this host as c %d:%d: %s", c.Request.Reason, request.Quote(name), d.Major, d.Minor, n.Major, n.Minor, request.StaleCDI)
		}
	}
	return nil
}

// hasCapability reports whether the specification contains the device node of a MIG right.
func hasCapability(c Container, h host.Host, right device.Capability) bool {
	nodes, err := h.Nodes(device.Set{Manage: []device.Capability{right}}, nil, driver.Files{})
	return err == nil && slices.ContainsFunc(nodes, func(n device.Node) bool { return n.Path == right.Path() && hasNode(c, n) })
}
