package gpuinject

import (
	"errors"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host/device"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host/driver"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/policy"
)

// nodeOptions are the mount options for the bind mount of a device node.
var nodeOptions = []string{"bind", "nosuid", "noexec", "rprivate"}

// planNodes decides which device nodes the container gets: those of its GPUs and those of other
// device classes. A class that it may not have is ignored, and the plan says so: an image that asks
// for more than its pod was allocated still starts with its GPUs.
func planNodes(c Container, h host.Host, g grant, files driver.Files, p *Plan) error {
	nodes, err := h.Nodes(g.set, g.request.Capabilities, files)
	if err != nil {
		return fail(Precondition, "%w", err)
	}
	if c.Input.EditedByCDI {
		nodes = append(nodes, keptClasses(c, h, p)...)
	}
	if g.request.ChannelsIgnored {
		p.ignore(config.IMEX, "policy.ignore-imex-channels is true")
	}
	for _, class := range g.request.Classes {
		others, err := planClass(c, h, g, class, p)
		if err != nil {
			return err
		}
		nodes = append(nodes, others...)
	}
	for _, n := range nodes {
		p.Devices = append(p.Devices, PlanDevice{Path: n.Path, Major: n.Major, Minor: n.Minor})
	}
	p.nodes = nodes
	return nil
}

func planClass(c Container, h host.Host, g grant, class string, p *Plan) ([]device.Node, error) {
	r, who := g.request, c.Input.Container
	var channels []int
	if class == config.IMEX && !r.AllChannels {
		channels = r.Channels
	}
	nodes, err := h.ClassNodes(class, channels)
	named := slices.Contains(r.Granted, class)
	may, all, reason := policy.DecideClass(c.Config.Policy, who, g.may, class, nodes, named)
	switch {
	case all && err != nil:
		return nil, fail(Precondition, "%w", err)
	case !all && len(may) == 0:
		p.ignore(class, reason)
		return nil, nil
	}
	if missing := missingChannels(channels, may); len(missing) > 0 {
		p.ignore(class+" "+strings.Join(missing, ","), "not among the channels that were allocated to the container")
	}
	if len(may) == 0 {
		p.decide(class, "not given", "this host has no such device")
		p.note("%s: this host has no such device", class)
		return nil, nil
	}
	if g.may.All && !g.enforced.All {
		would, all, reason := policy.DecideClass(c.Config.Policy, who, g.enforced, class, nodes, named)
		if !all && len(would) < len(may) {
			p.audit(class + ": " + reason)
		}
	}
	if class == config.MOFED && c.Config.Policy.RDMAAdapters == config.Near && !slices.Contains(r.Named, class) {
		may = nearAdapters(c, h, g, may, p)
	}
	if len(may) == 0 {
		return nil, nil
	}
	p.decide(class, "given", "%s", reason)
	p.addClass(class, may)
	return may, nil
}

// nearAdapters leaves out the RDMA adapters that are neither near the container's GPUs nor in its
// specification, and the connection manager if no adapter is left.
func nearAdapters(c Container, h host.Host, g grant, may []device.Node, p *Plan) []device.Node {
	near, far := h.Near(may, g.gpus)
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
	p.decide(config.MOFED+" "+strings.Join(names, ","), "not given", "not near the container's GPUs: policy.rdma-adapters = %q gives every adapter", config.AllAdapters)
	if !slices.ContainsFunc(near, func(n device.Node) bool { return n.Individual }) {
		p.note("%s: no adapter of this host is near the container's GPUs: policy.rdma-adapters = %q gives every adapter", config.MOFED, config.AllAdapters)
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

// Host files that cuFile reads besides the nodes: the assignment of disks to devices, below
// dev-root, and its configuration, below driver-root.
const (
	udevDir    = "/run/udev"
	cufileJSON = "/etc/cufile.json"
)

func (p *Plan) hasGDS() bool {
	return slices.ContainsFunc(p.Devices, func(d PlanDevice) bool { return strings.HasPrefix(d.Path, "/dev/nvidia-fs") })
}

// addClassFiles adds the files that GDS needs besides its nodes, if the host has them. They are
// mounted read-only, like every data file of the driver.
func addClassFiles(c Container, p *Plan) {
	if c.Input.EditedByCDI || !p.hasGDS() {
		return
	}
	for _, f := range [][2]string{{c.Config.Host.DevRoot, udevDir}, {c.Config.Host.DriverRoot, cufileJSON}} {
		root, name := f[0], f[1]
		at, err := driver.Locate(root, name)
		switch {
		case err == nil:
			p.files.Data = append(p.files.Data, driver.File{Path: at, Dest: name, Direct: true})
		case !errors.Is(err, fs.ErrNotExist):
			p.note("gds: %v", err)
		}
	}
}

// addNodes adds the device nodes, their rules and their groups to the edits.
func addNodes(c Container, p *Plan) error {
	e, userns := &p.edits, c.Input.Container.UserNamespace
	var nodes []specs.LinuxDevice
	bound := map[string]bool{}
	for _, n := range p.nodes {
		mode, uid, gid := n.Mode, n.UID, n.GID
		node := specs.LinuxDevice{
			Path: n.Path, Type: "c", Major: int64(n.Major), Minor: int64(n.Minor), FileMode: &mode, UID: &uid, GID: &gid,
		}
		nodes = append(nodes, node)
		if userns && n.HostPath != n.Path {
			// mknod fails in a user namespace, so runc binds the host's node, which it expects at
			// the same path (rootfs_linux.go, createDeviceNode). With another dev-root, the node is
			// elsewhere.
			p.Mounts = append(p.Mounts, PlanMount{Source: n.HostPath, Destination: n.Path, Options: nodeOptions})
			bound[n.Path] = true
		} else {
			e.Devices = append(e.Devices, node)
		}
		major, minor := int64(n.Major), int64(n.Minor)
		e.Rules = append(e.Rules, specs.LinuxDeviceCgroup{Allow: true, Type: "c", Major: &major, Minor: &minor, Access: "rw"})
		addGroup(c, n, p)
	}
	if err := c.Bundle.CheckDevices(nodes); err != nil {
		return fail(Invalid, "%w: %s", err, staleCDI)
	}
	// runc would also look for CDI's nodes at the same paths on the host.
	e.RemoveDevice = func(d specs.LinuxDevice) bool {
		return bound[path.Clean(d.Path)] || len(bound) > 0 && c.Input.EditedByCDI && host.IsDriverNode(d.Path)
	}
	return nil
}

// addGroup adds the group of a node that only its owner and group may open (render, video), so that
// a process that is not root can open it.
func addGroup(c Container, n device.Node, p *Plan) {
	if n.GID == 0 || n.Mode.Perm()&0o006 == 0o006 || n.Mode.Perm()&0o060 != 0o060 {
		return
	}
	if !c.Config.Container.AdditionalGIDs {
		p.note("%s belongs to group %d, which is not added to the process: container.additional-gids is false", n.Path, n.GID)
		return
	}
	if !slices.Contains(p.groups, n.GID) {
		p.groups = append(p.groups, n.GID)
	}
	gid, ok := n.GID, true
	if c.Input.Container.UserNamespace {
		gid, ok = containerID(c.Bundle.Spec.Linux.GIDMappings, n.GID)
	}
	switch {
	case !ok:
		// setgroups(2) would fail for this group, and the container would not start.
		p.note("%s belongs to group %d, which the container's user namespace does not have: it cannot be opened there", n.Path, n.GID)
	case !slices.Contains(p.edits.AdditionalGids, gid):
		p.edits.AdditionalGids = append(p.edits.AdditionalGids, gid)
	}
}

// containerID maps a host id into a user namespace.
func containerID(mappings []specs.LinuxIDMapping, host uint32) (uint32, bool) {
	for _, m := range mappings {
		if host >= m.HostID && host-m.HostID < m.Size {
			return m.ContainerID + host - m.HostID, true
		}
	}
	return 0, false
}
