package device

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
)

// StatNode returns the node at a path of the host. It does not follow a link, and a file that is
// not a character device is an error. The node's Path is not set.
func StatNode(name string) (Node, error) {
	var st unix.Stat_t
	if err := unix.Lstat(name, &st); err != nil { // guard: devices: no link
		return Node{}, fmt.Errorf("device node: %w", &fs.PathError{Op: "lstat", Path: name, Err: err})
	}
	if kind := st.Mode & unix.S_IFMT; kind != unix.S_IFCHR { // guard: devices: character devices
		return Node{}, fmt.Errorf("device node %s is %s, not a character device", name, cmp.Or(fileTypes[kind], "a special file"))
	}
	rdev := uint64(st.Rdev) //nolint:unconvert // 32 bits on some architectures
	return Node{
		HostPath: name, Major: unix.Major(rdev), Minor: unix.Minor(rdev),
		Mode: os.FileMode(st.Mode & 0o777), UID: st.Uid, GID: st.Gid,
	}, nil
}

var fileTypes = map[uint32]string{
	unix.S_IFLNK: "a symbolic link", unix.S_IFREG: "a regular file",
	unix.S_IFDIR: "a directory", unix.S_IFBLK: "a block device",
}

// wanted describes a node as its driver defines it.
type wanted struct {
	name   string   // below /dev
	driver string   // the driver's name in <proc>/devices, for messages
	majors []uint32 // those of the driver; none if it is not loaded
	minors []uint32 // the possible ones; nil if the driver assigns them
	// makeCommand makes the node if it is missing. It is "" for an optional node.
	makeCommand string
	// replaceable is true if nvidia-shimctl prepare --replace corrects a wrong node.
	replaceable bool
	link        string // see Node
}

// verify returns a node if it is the one that its driver defines. The error is a *FixError, or
// fs.ErrNotExist for an optional node.
func verify(cfg config.Host, w wanted) (Node, error) {
	node, err := StatNode(filepath.Join(cfg.DevRoot, "dev", w.name))
	node.Path, node.Link = "/dev/"+w.name, w.link
	fix := "remove it and load its kernel module again"
	if w.replaceable {
		fix = "run \"nvidia-shimctl prepare --replace\" on the host"
	}
	switch {
	case errors.Is(err, fs.ErrNotExist) && w.makeCommand != "":
		return Node{}, &FixError{fmt.Sprintf("device node %s is missing", filepath.Join(cfg.DevRoot, "dev", w.name)), fmt.Sprintf("run %q on the host", w.makeCommand), fs.ErrNotExist}
	case errors.Is(err, fs.ErrNotExist):
		return Node{}, err
	case err != nil:
		return Node{}, &FixError{err.Error(), fix, nil}
	case len(w.majors) == 0:
		return Node{}, &FixError{fmt.Sprintf("device node %s is there, but no driver %q in /proc/devices", node.HostPath, w.driver), "load its kernel module", nil}
	// guard: devices: driver's numbers
	// guard: devices: minor number
	case slices.Contains(w.majors, node.Major) && (w.minors == nil || slices.Contains(w.minors, node.Minor)):
		return node, nil
	case w.replaceable:
		return Node{}, &FixError{fmt.Sprintf("device node %s is %d:%d, but driver %q has %d:%d",
			node.HostPath, node.Major, node.Minor, w.driver, w.majors[0], w.minors[0]), fix, nil}
	}
	return Node{}, &FixError{fmt.Sprintf("device node %s is %d:%d, which is not its driver's by /proc/devices and /proc/misc",
		node.HostPath, node.Major, node.Minor), "load its kernel module, or remove the node", nil}
}

// Minor numbers that the driver fixes (nvidia-modprobe's interface). Its major numbers are not
// fixed.
const (
	minorModeset  = 254
	minorControl  = 255
	minorUVM      = 0
	minorUVMTools = 1
)

// The drivers of the nodes as named in <proc>/devices. Before 550.40 the GPUs' driver is called
// nvidia-frontend.
const (
	uvmDriver  = "nvidia-uvm"
	capsDriver = "nvidia-caps"
)

func gpuDriver(majors numbers) string {
	if len(majors["nvidia"]) > 0 {
		return "nvidia"
	}
	return "nvidia-frontend"
}

// Nodes returns the nodes that a container with these devices and capabilities needs:
//
//	nvidiactl                    always, also without a GPU
//	nvidia<minor>                of each GPU, whole or of a MIG device
//	nvidia-uvm, nvidia-uvm-tools with compute or video (whose libraries need CUDA)
//	nvidia-modeset               with display
//	dri/renderD<n>, dri/card<n>  of each GPU, with graphics or display, the card
//	                             with display only; of a MIG device if its
//	                             profile is for graphics
//	nvidia-caps/nvidia-cap<n>    of each MIG device two, and those of Set.Manage
//
// nvidia-uvm-tools, nvidia-modeset and the DRM nodes are skipped if the host has none, nvidia-uvm
// also if no GPU is asked for; every other missing node is an error that says how to make it.
//
// It reads <proc>/devices: a major that changed since Discover, or a node left over from an earlier
// module load, is refused (T37), as is a node that is a link or an ordinary file (T38).
func (inv Inventory) Nodes(set Set, caps []string) ([]Node, error) {
	majors, err := readMajors(inv.Config)
	if err != nil {
		return nil, err
	}
	var nodes []Node
	for _, w := range inv.wanted(set, caps, majors) {
		if IsDisplayNode("/dev/"+w.name) && !slices.Contains(caps, config.Display) { // guard: devices: display ones
			continue
		}
		node, err := verify(inv.Config, w)
		if errors.Is(err, fs.ErrNotExist) && w.makeCommand == "" {
			continue
		}
		if err != nil {
			return nil, err
		}
		nodes = append(nodes, node)
	}
	return nodes, nil
}

// IsDisplayNode reports whether the node at a path sets display modes. A program that only draws
// does not need it, and could take over the host's screen with it.
func IsDisplayNode(name string) bool {
	return name == "/dev/nvidia-modeset" || strings.HasPrefix(name, "/dev/dri/card")
}

// wanted lists the nodes in the order in which a container gets them.
func (inv Inventory) wanted(set Set, caps []string, majors numbers) []wanted {
	gpus := inv.Visible(set)
	var list []wanted
	add := func(name, driver string, minor int, required bool) {
		w := wanted{name: name, driver: driver, majors: majors[driver], minors: []uint32{uint32(minor)}, replaceable: true}
		if required {
			w.makeCommand = "nvidia-shimctl prepare"
			if len(w.majors) == 0 {
				w.makeCommand += " --load-modules"
			}
		}
		list = append(list, w)
	}
	add("nvidiactl", gpuDriver(majors), minorControl, true)
	for _, g := range gpus {
		add("nvidia"+strconv.Itoa(g.Minor), gpuDriver(majors), g.Minor, true)
	}
	if slices.Contains(caps, config.Compute) || slices.Contains(caps, config.Video) {
		add("nvidia-uvm", uvmDriver, minorUVM, len(gpus) > 0)
		add("nvidia-uvm-tools", uvmDriver, minorUVMTools, false)
	}
	if slices.Contains(caps, config.Graphics) || slices.Contains(caps, config.Display) {
		add("nvidia-modeset", gpuDriver(majors), minorModeset, false)
		for _, g := range gpus {
			if set.HasGPU(g) || slices.ContainsFunc(instancesOf(set.MIG, g), Instance.hasGraphics) {
				list = append(list, drmNodes(inv.Config, g.BusID, majors)...)
			}
		}
	}
	for _, c := range set.Capabilities() {
		add(c.node(), capsDriver, int(c.Minor), true)
	}
	return list
}

// drmNodes lists the card and render nodes of a PCI device. Their number is their minor
// (drm_minor_alloc in the kernel); there are none without nvidia-drm.
func drmNodes(cfg config.Host, busID string, majors numbers) []wanted {
	dir := filepath.Join(cfg.SysRoot, "bus/pci/devices", busID, "drm")
	var list []wanted
	for _, kind := range []struct{ prefix, link string }{{"card", "card"}, {"renderD", "render"}} {
		found, _ := numbered(dir, kind.prefix)
		for _, n := range found {
			list = append(list, wanted{
				name: path.Join("dri", kind.prefix+strconv.Itoa(n)), driver: "drm", majors: majors["drm"], minors: []uint32{uint32(n)},
				replaceable: true, link: "pci-" + busID + "-" + kind.link, // as udev names it (60-drm.rules)
			})
		}
	}
	return list
}

// MiscNode returns the node /dev/<name> of a misc device that the kernel lists as driver in
// <proc>/misc: its minor number is dynamic.
func MiscNode(cfg config.Host, name, driver string) (Node, error) {
	majors, err := readMajors(cfg)
	if err != nil {
		return Node{}, err
	}
	data, err := ReadFile(filepath.Join(cfg.ProcRoot, "misc"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) { // a kernel without misc devices
		return Node{}, fmt.Errorf("read device minors: %w", err)
	}
	minors := append([]uint32{}, parseNumbers(data)[driver]...)
	return verify(cfg, wanted{name: name, driver: "misc", majors: majors["misc"], minors: minors})
}

// UVMMajors returns the major numbers of the device node that a process with a CUDA context has open.
// There are none if its module is not loaded.
func UVMMajors(cfg config.Host) ([]uint32, error) {
	majors, err := readMajors(cfg)
	return majors[uvmDriver], err
}
