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

// chooseNodes decides which device nodes the container gets: those of its GPUs and those of other
// device classes. A class that it may not have is ignored, and the plan says so: an image that asks
// for more than its pod was allocated still starts with its GPUs.
func chooseNodes(c Container, h host.Host, g grant, files driver.Files) (ch Changes, err error) {
	nodes, err := h.Nodes(g.set, g.request.Capabilities, files)
	if err != nil {
		return ch, fail(Precondition, "%w", err)
	}
	if c.Input.EditedByCDI {
		ch = keptClasses(c, h)
	}
	if g.request.ChannelsIgnored {
		ch.Ignore(config.IMEX, "policy.ignore-imex-channels is true")
	}
	for _, class := range g.request.Classes {
		if err := ch.add(chooseClass(c, h, g, class)); err != nil {
			ch.Nodes = nil
			return ch, err
		}
	}
	ch.Nodes = append(nodes, ch.Nodes...)
	return ch, nil
}

func chooseClass(c Container, h host.Host, g grant, class string) (ch Changes, err error) {
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
		return ch, fail(Precondition, "%w", err)
	case !all && len(may) == 0:
		ch.Ignore(class, reason)
		return ch, nil
	}
	if missing := missingChannels(channels, may); len(missing) > 0 {
		ch.Ignore(class+" "+strings.Join(missing, ","), "not among the channels that were allocated to the container")
	}
	if len(may) == 0 {
		ch.Decide(class, "not given", "this host has no such device")
		ch.Note("%s: this host has no such device", class)
		return ch, nil
	}
	if g.may.All && !g.enforced.All {
		would, all, reason := policy.DecideClass(c.Config.Policy, who, g.enforced, class, nodes, named)
		if !all && len(would) < len(may) {
			ch.Audit = append(ch.Audit, class+": "+reason)
		}
	}
	if class == config.MOFED && c.Config.Policy.RDMAAdapters == config.Near && !slices.Contains(r.Named, class) {
		may = nearAdapters(c, h, g, may, &ch.Log)
	}
	if len(may) > 0 {
		ch.addClass(class, may, reason)
	}
	return ch, nil
}

// addClass adds the nodes of a class, and the reason why the container gets them.
func (ch *Changes) addClass(class string, nodes []device.Node, reason string) {
	ch.Decide(class, "given", "%s", reason)
	ch.Classes = append(ch.Classes, class)
	ch.Nodes = append(ch.Nodes, nodes...)
	if class == config.IMEX {
		for _, n := range nodes {
			ch.IMEX = append(ch.IMEX, int(n.Minor))
		}
	}
}

// nearAdapters leaves out the RDMA adapters that are neither near the container's GPUs nor in its
// specification, and the connection manager if no adapter is left.
func nearAdapters(c Container, h host.Host, g grant, may []device.Node, log *Log) []device.Node {
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
	log.Decide(config.MOFED+" "+strings.Join(names, ","), "not given", "not near the container's GPUs: policy.rdma-adapters = %q gives every adapter", config.AllAdapters)
	if !slices.ContainsFunc(near, func(n device.Node) bool { return n.Individual }) {
		log.Note("%s: no adapter of this host is near the container's GPUs: policy.rdma-adapters = %q gives every adapter", config.MOFED, config.AllAdapters)
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

func hasGDS(nodes []device.Node) bool {
	return slices.ContainsFunc(nodes, func(n device.Node) bool { return strings.HasPrefix(n.Path, "/dev/nvidia-fs") })
}

// classFiles returns the files that GDS needs besides its nodes, if the host has them. They are
// mounted read-only, like every data file of the driver.
func classFiles(c Container, nodes []device.Node) (files []driver.File, ch Changes) {
	if c.Input.EditedByCDI || !hasGDS(nodes) {
		return nil, ch
	}
	for _, f := range [][2]string{{c.Config.Host.DevRoot, udevDir}, {c.Config.Host.DriverRoot, cufileJSON}} {
		root, name := f[0], f[1]
		at, err := driver.Locate(root, name)
		switch {
		case err == nil:
			files = append(files, driver.File{Path: at, Dest: name, Direct: true})
		case !errors.Is(err, fs.ErrNotExist):
			ch.Note("gds: %v", err)
		}
	}
	return files, ch
}

// addNodes adds the device nodes, their rules and their groups.
func addNodes(c Container, list []device.Node) (ch Changes, err error) {
	e, userns := &ch.Edits, c.Input.Container.UserNamespace
	var nodes []specs.LinuxDevice
	bound := map[string]bool{}
	for _, n := range list {
		mode, uid, gid := n.Mode, n.UID, n.GID
		node := specs.LinuxDevice{
			Path: n.Path, Type: "c", Major: int64(n.Major), Minor: int64(n.Minor), FileMode: &mode, UID: &uid, GID: &gid,
		}
		nodes = append(nodes, node)
		if userns && n.HostPath != n.Path {
			// mknod fails in a user namespace, so runc binds the host's node, which it expects at
			// the same path (rootfs_linux.go, createDeviceNode). With another dev-root, the node is
			// elsewhere.
			ch.Mounts = append(ch.Mounts, Mount{PlanMount: PlanMount{Source: n.HostPath, Destination: n.Path, Options: nodeOptions}})
			bound[n.Path] = true
		} else {
			e.Devices = append(e.Devices, node)
		}
		major, minor := int64(n.Major), int64(n.Minor)
		e.Rules = append(e.Rules, specs.LinuxDeviceCgroup{Allow: true, Type: "c", Major: &major, Minor: &minor, Access: "rw"})
		ch.addGroup(c, n)
	}
	if err := c.Bundle.CheckDevices(nodes); err != nil {
		return ch, fail(Invalid, "%w: %s", err, staleCDI)
	}
	// runc would also look for CDI's nodes at the same paths on the host.
	e.RemoveDevice = func(d specs.LinuxDevice) bool {
		return bound[path.Clean(d.Path)] || len(bound) > 0 && c.Input.EditedByCDI && host.IsDriverNode(d.Path)
	}
	return ch, nil
}

// addGroup adds the group of a node that only its owner and group may open (render, video), so that
// a process that is not root can open it.
func (ch *Changes) addGroup(c Container, n device.Node) {
	if n.GID == 0 || n.Mode.Perm()&0o006 == 0o006 || n.Mode.Perm()&0o060 != 0o060 {
		return
	}
	if !c.Config.Container.AdditionalGIDs {
		ch.Note("%s belongs to group %d, which is not added to the process: container.additional-gids is false", n.Path, n.GID)
		return
	}
	if !slices.Contains(ch.Groups, n.GID) {
		ch.Groups = append(ch.Groups, n.GID)
	}
	gid, ok := n.GID, true
	if c.Input.Container.UserNamespace {
		gid, ok = containerID(c.Bundle.Spec.Linux.GIDMappings, n.GID)
	}
	switch {
	case !ok:
		// setgroups(2) would fail for this group, and the container would not start.
		ch.Note("%s belongs to group %d, which the container's user namespace does not have: it cannot be opened there", n.Path, n.GID)
	case !slices.Contains(ch.Edits.AdditionalGids, gid):
		ch.Edits.AdditionalGids = append(ch.Edits.AdditionalGids, gid)
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
