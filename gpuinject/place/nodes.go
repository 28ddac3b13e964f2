package place

import (
	"errors"
	"io/fs"
	"path"
	"slices"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/devnode"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host/device"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host/driver"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/request"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/verdict"
)

var nodeOptions = []string{"bind", "nosuid", "noexec", "rprivate"} // guard: view: options of nodes

// ClassFiles returns the files of the host that go with the classes, if the host has them. They are
// mounted read-only, like every data file of the driver.
func ClassFiles(c Container, classes []string, log *verdict.Log) (files []driver.File) {
	if c.Input.EditedByCDI {
		return nil
	}
	for _, name := range classes {
		class, _ := devnode.ByName(name)
		for _, f := range class.Files {
			root := c.Host.DriverRoot
			if f.InDevRoot {
				root = c.Host.DevRoot
			}
			at, err := driver.Locate(root, f.Path)
			switch {
			case err == nil:
				files = append(files, driver.File{Path: at, Dest: f.Path, Direct: true})
			case !errors.Is(err, fs.ErrNotExist):
				log.Note("%s: %v", name, err)
			}
		}
	}
	return files
}

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
			ch.Mounts = append(ch.Mounts, Mount{Source: n.HostPath, Destination: n.Path, Options: nodeOptions})
			bound[n.Path] = true
		} else {
			e.Devices = append(e.Devices, node)
		}
		major, minor := int64(n.Major), int64(n.Minor)
		// guard: devices: no mknod rule
		e.Rules = append(e.Rules, specs.LinuxDeviceCgroup{Allow: true, Type: "c", Major: &major, Minor: &minor, Access: "rw"})
		ch.addGroup(c, n)
	}
	if err := c.Bundle.CheckDevices(nodes); err != nil {
		return ch, verdict.Invalid("%w: %s", err, request.StaleCDI)
	}
	// runc would also look for CDI's nodes at the same paths on the host.
	e.RemoveDevice = func(d specs.LinuxDevice) bool {
		return bound[path.Clean(d.Path)] || len(bound) > 0 && c.Input.EditedByCDI && devnode.IsDriver(d.Path)
	}
	return ch, nil
}

// addGroup adds the group of a node that only its owner and group may open (render, video), so that
// a process that is not root can open it.
func (ch *Changes) addGroup(c Container, n device.Node) {
	if n.GID == 0 || n.Mode.Perm()&0o006 == 0o006 || n.Mode.Perm()&0o060 != 0o060 {
		return
	}
	if !c.Settings.AdditionalGIDs {
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
