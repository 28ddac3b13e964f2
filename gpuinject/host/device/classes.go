package device

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
)

// classNode is one kind of nodes of a class.
type classNode struct {
	// name is below /dev; a star at its end stands for a number.
	name       string
	individual bool
	// driver is the name in <proc>/devices, or for a misc device in <proc>/misc. A star at its end
	// stands for anything.
	driver string
	misc   bool
	// minor is the node's minor number, or one of the rules below.
	minor int
}

// Rules for minor numbers that are not fixed.
const (
	minorNumber = -1 // the number in the node's name
	minorAny    = -2 // the driver assigns them
)

// classes are the nodes by class. The numbers come from the kernel modules' sources:
// nv-caps-imex.c (minor == channel), nvidia-fs (register_chrdev "nvidia-fs…"), gdrdrv.c (one
// device, minor 0), ib_uverbs (IB_UVERBS_MAJOR and a dynamic region of the same name), ucma.c (a
// misc device) and linux_nvswitch.c (minor == instance, 255 for control).
var classes = map[string][]classNode{
	config.IMEX:    {{name: "nvidia-caps-imex-channels/channel*", individual: true, driver: imexDriver, minor: minorNumber}},
	config.GDS:     {{name: "nvidia-fs*", driver: "nvidia-fs*", minor: minorAny}},
	config.GDRCopy: {{name: "gdrdrv", driver: "gdrdrv", minor: 0}},
	config.MOFED: {
		{name: "infiniband/uverbs*", individual: true, driver: "infiniband_verbs", minor: minorAny},
		{name: "infiniband/rdma_cm", driver: "rdma_cm", misc: true},
	},
	config.NVSwitch: {
		{name: "nvidia-nvswitchctl", driver: "nvidia-nvswitch", minor: 255},
		{name: "nvidia-nvswitch*", individual: true, driver: "nvidia-nvswitch", minor: minorNumber},
	},
}

const imexDriver = "nvidia-caps-imex-channels"

// ClassNodes returns the nodes of a class of config.Classes, in the order of the numbers in their
// names. Of IMEX channels it returns those with the numbers given, or all if channels is nil; a
// missing one is an error that names it. Of the other classes it returns what the host has, which
// may be nothing.
//
// Every node is verified like those of GPUs. With the error for the first wrong node it still
// returns all correct ones, for a caller that only needs to know which of the host's nodes a
// container already has.
func (inv Inventory) ClassNodes(class string, channels []int) (nodes []Node, first error) {
	kinds, known := classes[class]
	if !known {
		return nil, fmt.Errorf("there is no class %q", class)
	}
	majors, err := readMajors(inv.Config)
	if err != nil {
		return nil, err
	}
	for _, k := range kinds {
		list := channels
		if class != config.IMEX || channels == nil {
			list = k.present(inv.Config.DevRoot)
		}
		for _, n := range list {
			node, err := k.node(inv.Config, n, majors)
			if err == nil {
				node.Individual = k.individual
				nodes = append(nodes, node)
			} else if first == nil {
				first = err
			}
		}
	}
	return nodes, first
}

// node verifies the node with that number.
func (k classNode) node(cfg config.Host, number int, majors numbers) (Node, error) {
	name := strings.Replace(k.name, "*", strconv.Itoa(number), 1)
	if k.misc {
		return MiscNode(cfg, name, k.driver)
	}
	w := wanted{name: name, driver: k.driver}
	for driver, list := range majors {
		if ok, _ := path.Match(k.driver, driver); ok {
			w.majors = append(w.majors, list...)
		}
	}
	switch {
	case k.minor == minorNumber:
		w.minors = []uint32{uint32(number)}
	case k.minor >= 0:
		w.minors = []uint32{uint32(k.minor)}
	}
	if k.driver == imexDriver && len(w.majors) > 0 {
		// Administrators create these nodes, as NVIDIA documents.
		w.makeCommand = fmt.Sprintf("nvidia-shimctl prepare --imex-channels=%d", number)
	}
	n, err := verify(cfg, w)
	if k.driver == imexDriver && errors.Is(err, fs.ErrNotExist) {
		if _, channels, e := readParams(cfg); e == nil && number >= channels {
			err = fmt.Errorf("device node %s is missing, and the driver has the channels 0 to %d: load the nvidia module with NVreg_ImexChannelCount=%d or more: %w",
				filepath.Join(cfg.DevRoot, "dev", name), channels-1, number+1, fs.ErrNotExist)
		}
	}
	return n, err
}

// present lists the numbers of the host's nodes: only 0 for a kind without numbers.
func (k classNode) present(devRoot string) []int {
	file := filepath.Join(devRoot, "dev", k.name)
	if prefix, ok := strings.CutSuffix(file, "*"); ok {
		found, _ := numbered(filepath.Dir(prefix), filepath.Base(prefix))
		return found
	}
	if _, err := os.Lstat(file); err != nil {
		return nil
	}
	return []int{0}
}
