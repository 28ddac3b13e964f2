package gpuinject

import (
	"cmp"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host/device"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host/driver"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/policy"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/request"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/rootfs"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/sockets"
)

// takeOver treats the devices that CDI added to the specification as both the request and the
// grant. Nodes are identified by their device numbers, not by their names.
func takeOver(c Container, h host.Host, ask Ask) (grant, error) {
	g := grant{request: c.Request}
	err := checkStale(c, h)
	if err != nil {
		return g, err
	}
	if g.set, err = h.Given(c.Input.Container.Nodes); err != nil {
		return g, fail(Precondition, "%s: %w", c.Request.Reason, err)
	}
	if err := h.GivenFaulty(c.Input.Container.Nodes); err != nil && !c.Input.Container.Privileged {
		return g, fail(Precondition, "%s: %w", c.Request.Reason, err)
	}
	for _, name := range []string{"config", "monitor"} {
		// A host without MIG has no such right.
		if right, err := h.Management(name); err == nil && hasCapability(c, h, right) {
			g.set.Manage = append(g.set.Manage, right)
			g.migRights = append(g.migRights, name)
		}
	}
	a := askAll(c, h, true, nil, ask)
	g.set.MIG = h.Annotate(g.set.MIG, a.kept.Facts)
	g.gpus = h.Visible(g.set)
	g.may = policy.Grant{Set: g.set, Reason: "taken over from CDI: " + cmp.Or(g.set.String(), "no GPU")}
	g.enforced = g.may
	g.decideGrant()
	g.Decide("capabilities", strings.Join(c.Request.Capabilities, ","), "%s", c.Request.CapabilitiesReason)
	r := c.Request
	r.Devices = g.set.Names()
	g.choose(h, r, a)
	g.decideDevices(h)
	return g, g.checkRequirements(c, h, a.kept.Facts, a.factsErr)
}

// staleCDI says what to do about device numbers that this host does not have.
const staleCDI = "if a CDI file is the reason, it is from another boot, MIG layout or driver: make it again (nvidia-shimctl prepare --cdi; systemctl restart nvidia-cdi-refresh, or nvidia-ctk cdi generate --output FILE; restart the device plugin) and create the container again"

// checkStale refuses a container whose specification has a node of the driver, of GDRCopy or of an
// RDMA adapter with a major number that the host's node of that path does not have: most majors are
// assigned when a module is loaded, and a CDI file with numbers outlives the boot. Another minor
// number alone is a node by another name.
func checkStale(c Container, h host.Host) error {
	for _, d := range c.Bundle.Spec.Linux.Devices {
		name := path.Clean(d.Path)
		given := host.IsDriverNode(name) || name == "/dev/gdrdrv" || strings.HasPrefix(name, "/dev/infiniband/")
		if !given || d.Type != "c" && d.Type != "u" {
			continue
		}
		n, err := device.StatNode(path.Join(h.Config.DevRoot, name))
		if err == nil && int64(n.Major) != d.Major {
			return fail(Precondition, "%s: it has %s as c %d:%d, and this host as c %d:%d: %s", c.Request.Reason, request.Quote(name), d.Major, d.Minor, n.Major, n.Minor, staleCDI)
		}
	}
	return nil
}

// hasCapability reports whether the specification contains the device node of a MIG right.
func hasCapability(c Container, h host.Host, right device.Capability) bool {
	nodes, err := h.Nodes(device.Set{Manage: []device.Capability{right}}, nil, driver.Files{})
	return err == nil && slices.ContainsFunc(nodes, func(n device.Node) bool {
		return strings.HasPrefix(n.Path, "/dev/nvidia-caps/") && hasNode(c, n)
	})
}

func hasNode(c Container, n device.Node) bool {
	return slices.Contains(c.Input.Container.Nodes, n.Number())
}

// cdiClasses are the device classes whose nodes NVIDIA's CDI specifications contain. RDMA adapters
// are left out: other vendors' plugins allocate them too, so their origin is unknown, and they need
// no further handling.
var cdiClasses = []string{config.IMEX, config.GDS, config.GDRCopy, config.NVSwitch}

// keptClasses returns the nodes of other device classes that CDI added to the specification. Their
// files are already mounted.
func keptClasses(c Container, h host.Host) (ch Changes) {
	for _, class := range cdiClasses {
		// A node that is not as expected on this host stays as CDI added it.
		others, _ := h.ClassNodes(class, nil)
		others = slices.DeleteFunc(others, func(n device.Node) bool { return !hasNode(c, n) })
		if len(others) > 0 {
			ch.addClass(class, others, "CDI put its nodes into the specification")
		}
	}
	return ch
}

// removeReplaced decides which mounts and rules to remove from the specification: those that CDI
// added for what the shim provides itself, and the device list if runc could not mount it. all
// holds the files of this host's driver, nodes the nodes that the container gets.
func removeReplaced(c Container, all driver.Files, nodes []device.Node) (ch Changes) {
	ch.Edits.RemoveMount = func(m specs.Mount) bool {
		return isCDIMount(c, all, m) || c.Input.Container.UserNamespace && isMappedListMount(m) || isDriverDir(all, m)
	}
	if slices.ContainsFunc(c.Bundle.Spec.Mounts, func(m specs.Mount) bool { return isDriverDir(all, m) }) {
		ch.Decide("mount at "+ViewDir, "replaced", "it is this host's directory of the driver")
	}
	if !c.Input.EditedByCDI {
		return ch
	}
	// CDI's device rules allow mknod.
	ch.Edits.RemoveRule = func(r specs.LinuxDeviceCgroup) bool {
		if !r.Allow || r.Type != "c" || r.Major == nil || r.Minor == nil || !strings.Contains(r.Access, "m") {
			return false
		}
		number := device.Number{Major: *r.Major, Minor: *r.Minor}
		return slices.ContainsFunc(nodes, func(n device.Node) bool { return n.Number() == number })
	}
	for _, m := range c.Bundle.Spec.Mounts {
		if isCDIMount(c, all, m) && isSocketMount(m) {
			ch.Note("not mounted: %s, which CDI gives every container; see container.sockets", m.Destination)
		}
	}
	return ch
}

// isCDIMount reports whether a mount comes from NVIDIA's CDI specification: a file of this host's
// driver, with the destination and options that nvidia-ctk writes, or request.VoidMount. A user's own mount of the same
// file has other options.
func isCDIMount(c Container, files driver.Files, m specs.Mount) bool {
	if !c.Input.EditedByCDI || !path.IsAbs(m.Source) || !slices.Contains(m.Options, "nosuid") || !slices.Contains(m.Options, "nodev") || !rootfs.IsBind(m) {
		return false
	}
	source, dest := path.Clean(m.Source), path.Clean(m.Destination)
	if isSocketMount(m) {
		return (dest != sockets.MPSDir || !sockets.NamesOwnMPS(c.Config.Host, c.Input.Env[sockets.EnvMPS])) && (files.InRoot(source) == dest || source == dest)
	}
	if source == "/dev/null" && dest == request.VoidMount {
		return true
	}
	return slices.Contains(m.Options, "ro") && files.IsMounted(source, dest)
}

// isDriverDir reports whether a read-only mount at ViewDir is this host's directory of the driver, as
// GKE's device plugin mounts it into every container that has a GPU. The view takes its place.
func isDriverDir(files driver.Files, m specs.Mount) bool {
	if path.Clean(m.Destination) != ViewDir || !path.IsAbs(m.Source) || !slices.Contains(m.Options, "ro") || !rootfs.IsBind(m) {
		return false
	}
	source, err := os.Stat(m.Source)
	return err == nil && slices.ContainsFunc(files.Libraries, func(l driver.Library) bool {
		if l.SOName != "libcuda.so.1" {
			return false
		}
		dir, err := os.Stat(path.Dir(path.Dir(l.Path))) // above lib64
		return err == nil && os.SameFile(dir, source)
	})
}

// isSocketMount reports whether a mount has the form of CDI's mount of a daemon's socket.
func isSocketMount(m specs.Mount) bool { return sockets.IsMount(path.Clean(m.Destination), m.Options) }

// isMappedListMount reports whether a mount belongs to the device list and has id mappings for a
// user namespace. runc cannot create it: its source, /dev/null, is on devtmpfs, which does not
// support idmapped mounts, so the container would not start (containerd maps every mount of such a
// pod). The shim has already read the list, and nothing in a container reads it.
func isMappedListMount(m specs.Mount) bool {
	return len(m.UIDMappings)+len(m.GIDMappings) > 0 && path.Clean(m.Source) == "/dev/null" &&
		strings.HasPrefix(path.Clean("/"+m.Destination), request.DeviceListDir+"/")
}
