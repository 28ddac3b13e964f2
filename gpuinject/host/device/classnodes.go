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
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/devnode"
)

// ClassNodes returns the nodes of a class of devnode.Classes, in the order of the numbers in their
// names. Of IMEX channels it returns those with the numbers given, or all if channels is nil; a
// missing one is an error that names it. Of the other classes it returns what the host has, which
// may be nothing.
//
// Every node is verified like those of GPUs. With the error for the first wrong node it still
// returns all correct ones, for a caller that only needs to know which of the host's nodes a
// container already has.
func (inv Inventory) ClassNodes(class string, channels []int) (nodes []Node, first error) {
	c, known := devnode.ByName(class)
	if !known {
		return nil, fmt.Errorf("there is no class %q", class)
	}
	majors, err := readMajors(inv.Config)
	if err != nil {
		return nil, err
	}
	for _, k := range c.Nodes {
		list := channels
		if !c.Numbered || channels == nil {
			list = present(inv.Config.DevRoot, k.Name)
		}
		for _, n := range list {
			node, err := classNode(inv.Config, k, n, majors)
			if err == nil {
				node.Individual = k.Individual
				nodes = append(nodes, node)
			} else if first == nil {
				first = err
			}
		}
	}
	return nodes, first
}

// classNode verifies the node of a kind with that number.
func classNode(cfg config.Host, k devnode.Node, number int, majors numbers) (Node, error) {
	isIMEX := k.Driver == devnode.IMEXDriver
	name := strings.Replace(k.Name, "*", strconv.Itoa(number), 1)
	if k.Misc {
		return MiscNode(cfg, name, k.Driver)
	}
	w := wanted{name: name, driver: k.Driver}
	for driver, list := range majors {
		if ok, _ := path.Match(k.Driver, driver); ok {
			w.majors = append(w.majors, list...)
		}
	}
	switch {
	case k.Minor == devnode.MinorNumber:
		w.minors = []uint32{uint32(number)}
	case k.Minor >= 0:
		w.minors = []uint32{uint32(k.Minor)}
	}
	if isIMEX && len(w.majors) > 0 {
		// Administrators create these nodes, as NVIDIA documents.
		w.makeCommand = fmt.Sprintf("nvidia-shimctl prepare --imex-channels=%d", number)
	}
	n, err := verify(cfg, w)
	if isIMEX && errors.Is(err, fs.ErrNotExist) {
		if _, channels, e := readParams(cfg); e == nil && number >= channels {
			err = fmt.Errorf("device node %s is missing, and the driver has the channels 0 to %d: load the nvidia module with NVreg_ImexChannelCount=%d or more: %w",
				filepath.Join(cfg.DevRoot, "dev", name), channels-1, number+1, fs.ErrNotExist)
		}
	}
	return n, err
}

// present lists the numbers of the host's nodes: only 0 for a kind without numbers.
func present(devRoot, name string) []int {
	file := filepath.Join(devRoot, "dev", name)
	if prefix, ok := strings.CutSuffix(file, "*"); ok {
		found, _ := numbered(filepath.Dir(prefix), filepath.Base(prefix))
		return found
	}
	if _, err := os.Lstat(file); err != nil {
		return nil
	}
	return []int{0}
}
