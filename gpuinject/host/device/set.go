package device

import (
	"cmp"
	"slices"
	"strconv"
)

// Set is devices that a container asks for, may have or gets.
type Set struct {
	// GPUs are whole GPUs, in index order.
	GPUs []GPU
	// MIG are MIG devices, by GPU, GPU instance and compute instance. Their GPUs are
	// not among GPUs.
	MIG []Instance
	// Manage are the rights to configure or watch MIG.
	Manage []Capability
}

// Empty tells whether nothing is in the set.
func (s Set) Empty() bool { return len(s.GPUs)+len(s.MIG) == 0 }

// HasGPU tells whether the set has the whole GPU.
func (s Set) HasGPU(gpu GPU) bool {
	return slices.ContainsFunc(s.GPUs, func(x GPU) bool { return x.BusID == gpu.BusID })
}

// HasMIG tells whether the set has the MIG device.
func (s Set) HasMIG(in Instance) bool { return slices.ContainsFunc(s.MIG, in.is) }

// AddGPU adds a GPU, once.
func (s *Set) AddGPU(gpu GPU) {
	if !s.HasGPU(gpu) {
		s.GPUs = append(s.GPUs, gpu)
		slices.SortFunc(s.GPUs, func(a, b GPU) int { return cmp.Compare(a.Index, b.Index) })
	}
}

// AddMIG adds a MIG device, once.
func (s *Set) AddMIG(in Instance) {
	if !s.HasMIG(in) {
		s.MIG = append(s.MIG, in)
		slices.SortFunc(s.MIG, func(a, b Instance) int {
			return cmp.Or(cmp.Compare(a.GPU, b.GPU), cmp.Compare(a.GI, b.GI), cmp.Compare(a.CI, b.CI))
		})
	}
}

// Add adds what is in another set.
func (s *Set) Add(other Set) {
	for _, gpu := range other.GPUs {
		s.AddGPU(gpu)
	}
	for _, in := range other.MIG {
		s.AddMIG(in)
	}
}

// Names are the names by which a container can ask for what is in the set.
func (s Set) Names() []string {
	names := make([]string, 0, len(s.GPUs)+len(s.MIG))
	for _, gpu := range s.GPUs {
		// Where the driver does not say the UUID, and of WSL2 and a Tegra.
		names = append(names, cmp.Or(gpu.UUID, gpu.BusID, strconv.Itoa(gpu.Index)))
	}
	for _, in := range s.MIG {
		names = append(names, in.Name())
	}
	return names
}

// Capabilities are the rights that the set needs beside the nodes of its GPUs, each
// once: two MIG devices can be of one GPU instance.
func (s Set) Capabilities() []Capability {
	var list []Capability
	for _, in := range s.MIG {
		for _, c := range in.capabilities() {
			if !slices.Contains(list, c) {
				list = append(list, c)
			}
		}
	}
	return append(list, s.Manage...)
}

// Visible are the GPUs that a container with the set sees, in index order: the whole
// ones and those that MIG devices are of.
func (inv *Inventory) Visible(s Set) []GPU {
	var list []GPU
	for _, gpu := range inv.GPUs {
		if s.HasGPU(gpu) || slices.ContainsFunc(s.MIG, func(in Instance) bool { return in.Minor == gpu.Minor }) {
			list = append(list, gpu)
		}
	}
	return list
}

// Number is a device number.
type Number struct{ Major, Minor int64 }

// Given returns the devices whose nodes are among numbers. Of a GPU that has MIG
// devices the node alone gives none of them, and not the GPU either; the node of a
// compute instance stands for its MIG device.
func (inv *Inventory) Given(numbers []Number) (Set, error) {
	var s Set
	if len(numbers) == 0 {
		return s, nil
	}
	if inv.Platform != "" {
		return inv.platformGiven(numbers)
	}
	majors, err := inv.majors()
	if err != nil {
		return s, err
	}
	major, loaded := majors[gpuDriver(majors)]
	caps, known := majors[capsDriver]
	cap := func(minor uint32) bool {
		return known && slices.Contains(numbers, Number{int64(caps), int64(minor)})
	}
	anyCap := known && slices.ContainsFunc(numbers, func(n Number) bool { return n.Major == int64(caps) })
	for _, gpu := range inv.GPUs {
		given := loaded && gpu.Minor >= 0 && slices.Contains(numbers, Number{int64(major), int64(gpu.Minor)})
		if !given && !anyCap {
			continue
		}
		instances, err := inv.InstancesOf(gpu)
		if err != nil {
			return Set{}, err
		}
		if whole, err := inv.whole(gpu); err != nil {
			return Set{}, err
		} else if given && whole {
			s.AddGPU(gpu)
		}
		for _, in := range instances {
			if cap(in.CINode) {
				s.AddMIG(in)
			}
		}
	}
	return s, nil
}
