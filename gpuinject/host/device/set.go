package device

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
)

// Set is a set of devices that a container asks for, may have or gets.
type Set struct {
	// GPUs are whole GPUs, in index order.
	GPUs []GPU
	// MIG are MIG devices, by GPU, GPU instance and compute instance. Their GPUs are not in GPUs.
	MIG []Instance
	// Manage are the rights to configure or monitor MIG.
	Manage []Capability
}

// Empty reports whether the set has no device.
func (s Set) Empty() bool { return len(s.GPUs)+len(s.MIG) == 0 }

// HasGPU reports whether the set has the whole GPU.
func (s Set) HasGPU(gpu GPU) bool {
	return slices.ContainsFunc(s.GPUs, func(x GPU) bool { return x.BusID == gpu.BusID })
}

// HasMIG reports whether the set has the MIG device.
func (s Set) HasMIG(in Instance) bool { return slices.ContainsFunc(s.MIG, in.is) }

// AddGPU adds a GPU unless the set has it.
func (s *Set) AddGPU(gpu GPU) {
	if !s.HasGPU(gpu) {
		s.GPUs = insert(s.GPUs, gpu, func(a, b GPU) int { return cmp.Compare(a.Index, b.Index) })
	}
}

// AddMIG adds a MIG device unless the set has it.
func (s *Set) AddMIG(in Instance) {
	if !s.HasMIG(in) {
		s.MIG = insert(s.MIG, in, func(a, b Instance) int {
			return cmp.Or(cmp.Compare(a.GPU, b.GPU), cmp.Compare(a.GI, b.GI), cmp.Compare(a.CI, b.CI))
		})
	}
}

// Add adds the devices of another set.
func (s *Set) Add(other Set) {
	for _, gpu := range other.GPUs {
		s.AddGPU(gpu)
	}
	for _, in := range other.MIG {
		s.AddMIG(in)
	}
}

// Names returns, for each device of the set, an id by which a container can ask for it.
func (s Set) Names() []string {
	names := make([]string, 0, len(s.GPUs)+len(s.MIG))
	for _, gpu := range s.GPUs {
		// The driver may not know the UUID, and not every GPU is on a PCI bus.
		names = append(names, cmp.Or(gpu.UUID, gpu.BusID, strconv.Itoa(gpu.Index)))
	}
	for _, in := range s.MIG {
		names = append(names, in.Name())
	}
	return names
}

// String lists the names.
func (s Set) String() string { return strings.Join(s.Names(), ",") }

// Capabilities returns the rights that the set needs besides the nodes of its GPUs. Each is listed
// once: two MIG devices can share a GPU instance.
func (s Set) Capabilities() []Capability {
	var list []Capability
	for _, in := range s.MIG {
		for _, c := range in.rights() {
			if !slices.Contains(list, c) {
				list = append(list, c)
			}
		}
	}
	return append(list, s.Manage...)
}

// Visible returns the GPUs that a container with the set sees, in index order: its whole GPUs and
// the GPUs of its MIG devices.
func (inv Inventory) Visible(s Set) []GPU {
	return slices.DeleteFunc(slices.Clone(inv.GPUs), func(gpu GPU) bool {
		return !s.HasGPU(gpu) && len(instancesOf(s.MIG, gpu)) == 0
	})
}

// insert adds an item to a sorted list.
func insert[E any](sorted []E, item E, compare func(a, b E) int) []E {
	at, _ := slices.BinarySearchFunc(sorted, item, compare)
	return slices.Insert(sorted, at, item)
}
