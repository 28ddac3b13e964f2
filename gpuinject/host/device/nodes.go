package device

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Minor numbers that the driver fixes (nvidia-modprobe's interface); its majors are
// not fixed.
const (
	minorModeset  = 254
	minorControl  = 255
	minorUVM      = 0
	minorUVMTools = 1
)

// remedyPrepare makes a missing node.
const remedyPrepare = "nvidia-shimctl prepare"

// Node is a verified character device of this host.
type Node struct {
	// Path is the path in the container: /dev/nvidia0.
	Path string
	// HostPath is where the node was verified: <dev-root>/dev/nvidia0.
	HostPath string
	// Major and Minor are the node's own.
	Major, Minor uint32
	// Mode holds the permission bits only.
	Mode os.FileMode
	// UID and GID own the node on the host.
	UID, GID uint32
	// Link is the name of a DRM node below /dev/dri/by-path: pci-0000:19:00.0-card.
	Link string
}

// wanted is a node before it was looked at.
type wanted struct {
	name     string // below /dev
	driver   string // for messages
	major    uint32
	known    bool // whether <proc>/devices lists the driver
	minor    uint32
	required bool
	remedy   string
	link     string // see Node
}

// The drivers of the nodes as <proc>/devices names them. The GPUs' is called
// nvidia-frontend before 550.40.
const capsDriver = "nvidia-caps"

func gpuDriver(majors map[string]uint32) string {
	if _, ok := majors["nvidia"]; ok {
		return "nvidia"
	}
	return "nvidia-frontend"
}

// Nodes returns the nodes that a container with these devices and capabilities needs:
//
//	nvidiactl                    always, also without a GPU
//	nvidia<minor>                of each GPU, whole or of a MIG device
//	nvidia-uvm, nvidia-uvm-tools with compute or video (whose libraries need CUDA)
//	nvidia-modeset               with graphics or display
//	dri/card<n>, dri/renderD<n>  of each GPU, with graphics or display; of a MIG
//	                             device where its profile is for graphics
//	nvidia-caps/nvidia-cap<n>    of each MIG device two, and those of Set.Manage
//
// after toolkit.md 4.1 and 4.2. nvidia-uvm-tools, nvidia-modeset and the DRM nodes
// are skipped where the host has none, nvidia-uvm also when no GPU is asked for;
// every other missing node is an error that says how to make it.
//
// Under WSL2 it is /dev/dxg alone. A Tegra's are not found here: see NodesAt.
//
// <proc>/devices is read again here: a major that changed since Discover, or a node
// left over from an earlier module load, is refused (security.md T37), as is a node
// that is a link or an ordinary file (T38).
func (inv *Inventory) Nodes(set Set, caps []string) ([]Node, error) {
	if inv.Platform == WSL {
		return inv.wslNodes()
	}
	majors, err := inv.majors()
	if err != nil {
		return nil, err
	}
	var nodes []Node
	for _, w := range inv.wanted(set, caps, majors) {
		node, err := verify(inv.Roots.Dev, w)
		if errors.Is(err, fs.ErrNotExist) && !w.required {
			continue
		}
		if err != nil {
			return nil, err
		}
		nodes = append(nodes, node)
	}
	return nodes, nil
}

// wanted lists the nodes in the order in which they are given.
func (inv *Inventory) wanted(set Set, caps []string, majors map[string]uint32) []wanted {
	driver, gpus := gpuDriver(majors), inv.Visible(set)
	list := []wanted{{name: "nvidiactl", driver: driver, minor: minorControl, required: true, remedy: remedyPrepare}}
	for _, g := range gpus {
		n := strconv.Itoa(g.Minor)
		list = append(list, wanted{name: "nvidia" + n, driver: driver, minor: uint32(g.Minor), required: true, remedy: remedyPrepare})
	}
	has := func(names ...string) bool {
		return slices.ContainsFunc(names, func(c string) bool { return slices.Contains(caps, c) })
	}
	if has("compute", "video") {
		list = append(list,
			wanted{name: "nvidia-uvm", driver: "nvidia-uvm", minor: minorUVM, required: len(gpus) > 0, remedy: remedyPrepare},
			wanted{name: "nvidia-uvm-tools", driver: "nvidia-uvm", minor: minorUVMTools})
	}
	if has("graphics", "display") {
		list = append(list, wanted{name: "nvidia-modeset", driver: driver, minor: minorModeset})
		for _, g := range gpus {
			if set.HasGPU(g) || slices.ContainsFunc(set.MIG, func(in Instance) bool { return in.Minor == g.Minor && in.graphics() }) {
				list = append(list, drmNodes(inv.Roots.Sys, g.BusID)...)
			}
		}
	}
	for _, c := range set.Capabilities() {
		list = append(list, wanted{
			name: c.node(), driver: capsDriver, minor: c.Minor, required: true,
			remedy: remedyPrepare,
		})
	}
	for i := range list {
		list[i].major, list[i].known = majors[list[i].driver]
	}
	return list
}

// drmNodes names the card and render nodes of a PCI device. Their number is their
// minor (drm_minor_alloc in the kernel); there are none without nvidia-drm.
func drmNodes(sys, busID string) []wanted {
	names, err := readNames(filepath.Join(sys, "bus/pci/devices", busID, "drm"))
	if err != nil {
		return nil
	}
	slices.Sort(names) // cards before render nodes
	var list []wanted
	for _, name := range names {
		kind := "card"
		number, ok := strings.CutPrefix(name, "card")
		if !ok {
			kind = "render"
			number, ok = strings.CutPrefix(name, "renderD")
		}
		if n, err := strconv.ParseUint(number, 10, 20); ok && err == nil {
			// Named as udev does (60-drm.rules).
			list = append(list, wanted{name: "dri/" + name, driver: "drm", minor: uint32(n), link: "pci-" + busID + "-" + kind})
		}
	}
	return list
}

// verify looks at a node without following it.
func verify(devRoot string, w wanted) (Node, error) {
	node := Node{Path: "/dev/" + w.name, HostPath: filepath.Join(devRoot, "dev", w.name), Link: w.link}
	var st unix.Stat_t
	if err := unix.Lstat(node.HostPath, &st); err != nil {
		err := &fs.PathError{Op: "lstat", Path: node.HostPath, Err: err}
		if errors.Is(err, fs.ErrNotExist) && w.remedy != "" {
			if !w.known {
				w.remedy += " --load-modules"
			}
			return Node{}, fmt.Errorf("device node %s is missing: run %q on the host: %w", node.HostPath, w.remedy, fs.ErrNotExist)
		}
		return Node{}, fmt.Errorf("device node: %w", err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFCHR {
		return Node{}, fmt.Errorf("device node %s is %s, not a character device: run \"nvidia-shimctl prepare --replace\" on the host",
			node.HostPath, fileType(st.Mode))
	}
	rdev := uint64(st.Rdev) //nolint:unconvert // 32 bits on some architectures
	node.Major, node.Minor = unix.Major(rdev), unix.Minor(rdev)
	node.Mode, node.UID, node.GID = os.FileMode(st.Mode&0o777), st.Uid, st.Gid
	if !w.known {
		return Node{}, fmt.Errorf("device node %s is there, but no driver %q in /proc/devices: load its kernel module", node.HostPath, w.driver)
	}
	if node.Major != w.major || node.Minor != w.minor {
		return Node{}, fmt.Errorf("device node %s is %d:%d, but driver %q has %d:%d for it: run \"nvidia-shimctl prepare --replace\" on the host",
			node.HostPath, node.Major, node.Minor, w.driver, w.major, w.minor)
	}
	return node, nil
}

func fileType(mode uint32) string {
	switch mode & unix.S_IFMT {
	case unix.S_IFLNK:
		return "a symbolic link"
	case unix.S_IFREG:
		return "a regular file"
	case unix.S_IFDIR:
		return "a directory"
	case unix.S_IFBLK:
		return "a block device"
	}
	return "a special file"
}

func (inv *Inventory) majors() (map[string]uint32, error) {
	return readMajors(filepath.Join(inv.Roots.Proc, "devices"))
}

// readMajors reads the character devices of <proc>/devices: name to major.
func readMajors(file string) (map[string]uint32, error) {
	data, err := readBounded(file)
	if err != nil {
		return nil, fmt.Errorf("read device majors: %w", err)
	}
	return parseMajors(data), nil
}

// parseMajors takes the lines "195 nvidia" between "Character devices:" and "Block
// devices:". A name can have several majors; the first counts.
func parseMajors(data []byte) map[string]uint32 {
	majors := map[string]uint32{}
	character := false
	for line := range strings.Lines(string(data)) {
		number, name, ok := strings.Cut(strings.TrimSpace(line), " ")
		name = strings.TrimSpace(name)
		if !ok || strings.ContainsAny(name, " \t") {
			continue
		}
		if name == "devices:" {
			character = number == "Character"
			continue
		}
		if !character {
			continue
		}
		n, err := strconv.ParseUint(number, 10, 12) // the kernel's majors have 12 bits
		if err != nil {
			continue
		}
		if _, ok := majors[name]; !ok {
			majors[name] = uint32(n)
		}
	}
	return majors
}
