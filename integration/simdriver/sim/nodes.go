package sim

import (
	"bufio"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Majors are the major numbers of the device nodes. The kernel reserves 195 for
// NVIDIA's GPUs and gives out the others as modules are loaded.
type Majors struct {
	GPU, UVM, Caps, DRM uint32
	// Those of Others.
	IMEX, Switch, FS, Verbs, GDR, Misc uint32
}

var defaultMajors = Majors{
	GPU: 195, UVM: 238, Caps: 241, DRM: 226,
	IMEX: 242, Switch: 239, FS: 506, Verbs: 231, GDR: 507, Misc: 508,
}

// Minors of the nodes that belong to no GPU.
const (
	ctlMinor     = 255
	modesetMinor = 254
)

// Groups that own the DRM nodes, numbered as in Debian.
const (
	videoGID  = 44
	renderGID = 104
)

// chooseMajors returns major numbers that are free on this host. A simulated node with a
// number that a driver of this host has would open that driver's device: 195 in use means
// real GPUs and is refused, any other number is replaced by a free one.
func chooseMajors() (Majors, error) {
	chars, _, err := hostDevices()
	if err != nil {
		return Majors{}, err
	}
	used := map[uint32]string{}
	for _, d := range chars {
		used[d.major] = d.name
	}
	m := defaultMajors
	if name, ok := used[m.GPU]; ok {
		return m, fmt.Errorf("major number %d belongs to %q on this host: simulated nodes would open its real devices", m.GPU, name)
	}
	for _, major := range []*uint32{&m.UVM, &m.Caps, &m.DRM, &m.IMEX, &m.Switch, &m.FS, &m.Verbs, &m.GDR, &m.Misc} {
		// 384 to 511 is the range that the kernel uses last for dynamic majors.
		for next := uint32(511); used[*major] != ""; next-- {
			if next < 384 {
				return m, fmt.Errorf("no major number is free")
			}
			*major = next
		}
		used[*major] = "simulated"
	}
	return m, nil
}

// deviceDriver is one line of /proc/devices.
type deviceDriver struct {
	major uint32
	name  string
}

// hostDevices reads this host's /proc/devices: the character devices, and the
// rest as it is.
func hostDevices() (chars []deviceDriver, rest string, err error) {
	data, err := os.ReadFile("/proc/devices")
	if err != nil {
		return nil, "", err
	}
	head, rest, _ := strings.Cut(string(data), "\nBlock devices:")
	for sc := bufio.NewScanner(strings.NewReader(head)); sc.Scan(); {
		fields := strings.Fields(sc.Text())
		if len(fields) != 2 {
			continue
		}
		major, err := strconv.ParseUint(fields[0], 10, 32)
		if err != nil {
			continue
		}
		chars = append(chars, deviceDriver{uint32(major), fields[1]})
	}
	return chars, "Block devices:" + rest, nil
}

// node is one device node below DevRoot/dev.
type node struct {
	name         string
	major, minor uint32
	mode         fs.FileMode
	gid          int
}

// nodes are all device nodes of this host.
func (d *Driver) nodes() []node {
	m := d.Majors
	all := []node{
		{"nvidiactl", m.GPU, ctlMinor, 0o666, 0},
		{"nvidia-modeset", m.GPU, modesetMinor, 0o666, 0},
		{"nvidia-uvm", m.UVM, 0, 0o666, 0},
		{"nvidia-uvm-tools", m.UVM, 1, 0o666, 0},
		{"nvidia-caps/nvidia-cap1", m.Caps, 1, 0o400, 0},
		{"nvidia-caps/nvidia-cap2", m.Caps, 2, 0o444, 0},
	}
	for _, g := range d.GPUs {
		all = append(all, node{fmt.Sprintf("nvidia%d", g.Minor), m.GPU, uint32(g.Minor), 0o666, 0})
		if d.Layout.hasDRM() {
			all = append(all,
				node{fmt.Sprintf("dri/card%d", cardNumber(g)), m.DRM, uint32(cardNumber(g)), 0o660, videoGID},
				node{fmt.Sprintf("dri/renderD%d", renderNumber(g)), m.DRM, uint32(renderNumber(g)), 0o660, renderGID})
		}
	}
	all = append(all, d.migNodes()...)
	return append(all, d.otherNodes()...)
}

// card0 is the display of the server's management controller.
func cardNumber(g GPU) int { return g.Index + 1 }

func renderNumber(g GPU) int { return 128 + g.Index }

func (d *Driver) makeNode(n node) error {
	name := filepath.Join(d.DevRoot, "dev", n.name)
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return err
	}
	if err := unix.Mknod(name, unix.S_IFCHR|uint32(n.mode), int(unix.Mkdev(n.major, n.minor))); err != nil {
		return &fs.PathError{Op: "mknod (this needs root with CAP_MKNOD)", Path: name, Err: err}
	}
	if err := os.Chmod(name, n.mode); err != nil {
		return err
	}
	return os.Chown(name, 0, n.gid)
}

func (d *Driver) makeNodes() error {
	dev := filepath.Join(d.DevRoot, "dev")
	if err := os.MkdirAll(dev, 0o755); err != nil {
		return err
	}
	for _, n := range d.nodes() {
		if err := d.makeNode(n); err != nil {
			return err
		}
	}
	if !d.Layout.hasDRM() {
		return nil
	}
	byPath := filepath.Join(dev, "dri/by-path")
	if err := os.MkdirAll(byPath, 0o755); err != nil {
		return err
	}
	for _, g := range d.GPUs {
		for suffix, target := range map[string]string{
			"card":   fmt.Sprintf("../card%d", cardNumber(g)),
			"render": fmt.Sprintf("../renderD%d", renderNumber(g)),
		} {
			if err := os.Symlink(target, filepath.Join(byPath, "pci-"+g.BusID+"-"+suffix)); err != nil {
				return err
			}
		}
	}
	return nil
}
