package device

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
)

// OnlyPresent leaves out the GPUs that have no node here, and counts the others from 0
// as NVML does, and leaves out the MIG devices without both of their capability nodes.
// It is for a host that is a container itself (kind): procfs shows everything of the
// machine there, unless it is masked, and the nodes are those that the container was
// given.
func (inv *Inventory) OnlyPresent() {
	present := inv.GPUs[:0]
	for _, g := range inv.GPUs {
		if inv.hasNode("nvidia"+strconv.Itoa(g.Minor)) || g.Minor < 0 {
			g.Index = len(present)
			present = append(present, g)
		}
	}
	inv.GPUs, inv.nested, inv.layouts = present, true, nil
}

// hasNode tells whether something is where a node is to be; Nodes looks closer.
func (inv *Inventory) hasNode(name string) bool {
	_, err := os.Lstat(filepath.Join(inv.Roots.Dev, "dev", name))
	return err == nil
}

// layout is how MIG divides a GPU.
type layout struct {
	// here are the MIG devices of this host.
	here []Instance
	// elsewhere are those of the machine that this host, a container, was not given.
	elsewhere []Instance
	// gis are the ids of the GPU instances, with a compute instance or without.
	gis []int
}

// divide tells the MIG devices of a GPU apart, as far as this host is a container.
func (inv *Inventory) divide(all []Instance) layout {
	if !inv.nested {
		return layout{here: all}
	}
	var l layout
	for _, in := range all {
		missing := func(c Capability) bool { return !inv.hasNode(c.node()) }
		if slices.ContainsFunc(in.capabilities(), missing) {
			l.elsewhere = append(l.elsewhere, in)
		} else {
			l.here = append(l.here, in)
		}
	}
	return l
}

// Withheld counts the MIG devices of a GPU that this host, a container, was not given.
// A GPU that has such is not this host's as a whole, also where it has no other: its
// node was given for a MIG device that is gone, or before it was divided.
func (inv *Inventory) Withheld(gpu GPU) (int, error) {
	l, err := inv.layoutOf(gpu)
	return len(l.elsewhere), err
}

// whole tells whether a GPU is one to be used by itself.
func (inv *Inventory) whole(gpu GPU) (bool, error) {
	l, err := inv.layoutOf(gpu)
	return len(l.here)+len(l.elsewhere) == 0, err
}

// isElsewhere tells a MIG device that exists and is not this host's.
func (inv *Inventory) isElsewhere(gpu GPU, gi, ci int) (bool, error) {
	l, err := inv.layoutOf(gpu)
	return slices.ContainsFunc(l.elsewhere, func(in Instance) bool { return in.GI == gi && in.CI == ci }), err
}
