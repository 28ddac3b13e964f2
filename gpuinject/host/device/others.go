package device

import (
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
)

// Other is a verified node of a class of devices besides GPUs.
type Other struct {
	Node
	// One is set for a node that is handed out by itself: an IMEX channel, an RDMA
	// adapter, an NVSwitch. The others are the same for whoever has one of the class.
	One bool
}

// otherKind is one kind of nodes of a class.
type otherKind struct {
	// dir is below /dev; prefix and a number, or just prefix where numbered is not
	// set, is the node's name in it.
	dir, prefix string
	numbered    bool
	one         bool
	// drivers are the names that <proc>/devices may have for the nodes.
	drivers func(name string) bool
	// minor is what the node's minor number must be; nil where the driver gives them
	// out as it pleases.
	minor func(number int, misc map[string]uint32) (uint32, bool)
	// mknod is set where an administrator makes the nodes, as NVIDIA documents it.
	mknod bool
}

func named(names ...string) func(string) bool {
	return func(s string) bool { return slices.Contains(names, s) }
}

func fixed(minor uint32) func(int, map[string]uint32) (uint32, bool) {
	return func(int, map[string]uint32) (uint32, bool) { return minor, true }
}

func same(number int, _ map[string]uint32) (uint32, bool) { return uint32(number), true }

// otherKinds are the nodes by class, after toolkit.md 6. The numbers are those of
// the kernel modules' sources: nv-caps-imex.c (minor == channel), nvidia-fs
// (register_chrdev "nvidia-fs…"), gdrdrv.c (one device, minor 0), ib_uverbs
// (IB_UVERBS_MAJOR and a dynamic region of the same name), ucma.c (a misc device) and
// linux_nvswitch.c (minor == instance, 255 for control).
var otherKinds = map[string][]otherKind{
	"imex": {{
		dir: "nvidia-caps-imex-channels", prefix: "channel", numbered: true, one: true,
		drivers: named("nvidia-caps-imex-channels"), minor: same, mknod: true,
	}},
	"gds": {{
		prefix: "nvidia-fs", numbered: true,
		drivers: func(s string) bool { return strings.HasPrefix(s, "nvidia-fs") },
	}},
	"gdrcopy": {{prefix: "gdrdrv", drivers: named("gdrdrv"), minor: fixed(0)}},
	"mofed": {
		{dir: "infiniband", prefix: "uverbs", numbered: true, one: true, drivers: named("infiniband_verbs")},
		{dir: "infiniband", prefix: "rdma_cm", drivers: named("misc"), minor: func(_ int, misc map[string]uint32) (uint32, bool) {
			n, ok := misc["rdma_cm"]
			return n, ok
		}},
	},
	"nvswitch": {
		{prefix: "nvidia-nvswitchctl", drivers: named("nvidia-nvswitch"), minor: fixed(255)},
		{prefix: "nvidia-nvswitch", numbered: true, one: true, drivers: named("nvidia-nvswitch"), minor: same},
	},
}

// Others returns the nodes of a class: "imex", "gds", "gdrcopy", "mofed" or
// "nvswitch", in the order of their names' numbers. Of IMEX channels it returns those
// with the numbers given, or all where channels is nil; one that is missing is an
// error that names it. Of the others it returns what the host has, which may be
// nothing.
//
// Every node is verified by lstat, as GPUs' are: a character device, with a major that
// <proc>/devices gives now to its driver, and the minor that the driver fixes, where
// it does. Beside the error of the first node that is not as it should be, all that
// are as they should be are returned, for a caller that only asks which of the host's
// nodes a container has already.
func (inv *Inventory) Others(class string, channels []int) (nodes []Other, err error) {
	kinds, ok := otherKinds[class]
	if !ok {
		return nil, fmt.Errorf("unknown class of devices %q", class)
	}
	data, err := readBounded(filepath.Join(inv.Roots.Proc, "devices"))
	if err != nil {
		return nil, fmt.Errorf("read device majors: %w", err)
	}
	drivers := string(data)
	var misc map[string]uint32
	if class == "mofed" {
		// Missing where the kernel has no misc device; then there is no rdma_cm either.
		if data, err := readBounded(filepath.Join(inv.Roots.Proc, "misc")); err == nil {
			misc = parseMajors(append([]byte("Character devices:\n"), data...)) // "57 rdma_cm", like majors
		}
	}
	var first error
	for _, k := range kinds {
		numbers := channels
		if class != "imex" || channels == nil {
			numbers = k.present(inv.Roots.Dev)
		}
		majors := majorsOf(drivers, k.drivers)
		for _, n := range numbers {
			node, err := k.verify(inv.Roots.Dev, n, majors, misc)
			if err != nil {
				if first == nil {
					first = err
				}
				continue
			}
			nodes = append(nodes, Other{Node: node, One: k.one})
		}
	}
	return nodes, first
}

// present lists the numbers of the nodes that the host has. A kind without numbers
// has the one number 0, or none.
func (k otherKind) present(devRoot string) []int {
	if !k.numbered {
		if _, err := os.Lstat(filepath.Join(devRoot, "dev", k.name(0))); err != nil {
			return nil
		}
		return []int{0}
	}
	entries, err := os.ReadDir(filepath.Join(devRoot, "dev", k.dir))
	if err != nil {
		return nil
	}
	var numbers []int
	for _, e := range entries {
		digits, ok := strings.CutPrefix(e.Name(), k.prefix)
		n, err := strconv.ParseUint(digits, 10, 20) // the kernel's minors have 20 bits
		if ok && err == nil && strconv.Itoa(int(n)) == digits {
			numbers = append(numbers, int(n))
		}
	}
	slices.Sort(numbers)
	return numbers
}

// name is the node's name below /dev.
func (k otherKind) name(number int) string {
	if k.numbered {
		return path.Join(k.dir, k.prefix+strconv.Itoa(number))
	}
	return path.Join(k.dir, k.prefix)
}

// verify looks at a node without following it.
func (k otherKind) verify(devRoot string, number int, majors []uint32, misc map[string]uint32) (Node, error) {
	name := k.name(number)
	node := Node{Path: "/dev/" + name, HostPath: filepath.Join(devRoot, "dev", name)}
	var st unix.Stat_t
	if err := unix.Lstat(node.HostPath, &st); err != nil {
		err := &fs.PathError{Op: "lstat", Path: node.HostPath, Err: err}
		if errors.Is(err, fs.ErrNotExist) && k.mknod && len(majors) > 0 {
			return Node{}, fmt.Errorf("device node %s is missing: run %q on the host: %w",
				node.HostPath, fmt.Sprintf("nvidia-shimctl prepare --imex-channels=%d", number), fs.ErrNotExist)
		}
		return Node{}, fmt.Errorf("device node: %w", err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFCHR {
		return Node{}, fmt.Errorf("device node %s is %s, not a character device: remove it and load its kernel module again", node.HostPath, fileType(st.Mode))
	}
	rdev := uint64(st.Rdev) //nolint:unconvert // 32 bits on some architectures
	node.Major, node.Minor = unix.Major(rdev), unix.Minor(rdev)
	node.Mode, node.UID, node.GID = os.FileMode(st.Mode&0o777), st.Uid, st.Gid
	wrong := !slices.Contains(majors, node.Major)
	if k.minor != nil {
		minor, known := k.minor(number, misc)
		wrong = wrong || !known || minor != node.Minor
	}
	if wrong {
		return Node{}, fmt.Errorf("device node %s is %d:%d, which is not its driver's by /proc/devices and /proc/misc: load its kernel module, or remove the node",
			node.HostPath, node.Major, node.Minor)
	}
	return node, nil
}

// majorsOf are the majors of the character devices of <proc>/devices whose driver has
// one of the names. A driver can have several: ib_uverbs does.
func majorsOf(devices string, is func(string) bool) []uint32 {
	var majors []uint32
	character := false
	for line := range strings.Lines(devices) {
		fields := strings.Fields(line)
		if len(fields) != 2 {
			continue
		}
		if fields[1] == "devices:" {
			character = fields[0] == "Character"
			continue
		}
		if n, err := strconv.ParseUint(fields[0], 10, 12); character && err == nil && is(fields[1]) {
			majors = append(majors, uint32(n))
		}
	}
	return majors
}
