package device

import (
	"cmp"
	"slices"
	"strconv"
	"strings"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/devnode"
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
		s.GPUs = append(s.GPUs, gpu)
		slices.SortFunc(s.GPUs, func(a, b GPU) int { return cmp.Compare(a.Index, b.Index) })
	}
}

// AddMIG adds a MIG device unless the set has it.
func (s *Set) AddMIG(in Instance) {
	if !s.HasMIG(in) {
		s.MIG = append(s.MIG, in)
		slices.SortFunc(s.MIG, func(a, b Instance) int {
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

// Number returns the node's number.
func (n Node) Number() devnode.Number {
	return devnode.Number{Major: int64(n.Major), Minor: int64(n.Minor)}
}

// Given returns the devices whose nodes are in list. The node of a MIG-partitioned GPU alone stands
// for neither the GPU nor a MIG device; the node of a compute instance stands for its MIG device.
func (inv Inventory) Given(list []devnode.Number) (Set, error) {
	var s Set
	if len(list) == 0 {
		return s, nil
	}
	majors, err := readMajors(inv.Config)
	if err != nil {
		return s, err
	}
	has := func(driver string, minor int) bool {
		return slices.ContainsFunc(majors[driver], func(major uint32) bool {
			return slices.Contains(list, devnode.Number{Major: int64(major), Minor: int64(minor)})
		})
	}
	for _, gpu := range inv.GPUs {
		// guard: grant: no partitioned GPU by its node
		if gpu.Minor >= 0 && has(gpuDriver(majors), gpu.Minor) && inv.IsWhole(gpu) {
			s.AddGPU(gpu)
		}
	}
	for _, in := range inv.MIG {
		if has(capsDriver, int(in.CIRight.Minor)) {
			s.AddMIG(in)
		}
	}
	return s, nil
}

// GivenFaulty returns the error of the first faulty GPU or MIG device whose node is in list, or nil.
// A node of a GPU that is no other GPU's counts as that of a faulty GPU whose minor is not known.
func (inv Inventory) GivenFaulty(list []devnode.Number) error {
	if len(list) == 0 || len(inv.Faulty)+len(inv.FaultyMIG) == 0 {
		return nil
	}
	majors, err := readMajors(inv.Config)
	if err != nil {
		return err
	}
	unknown := map[int]bool{} // minors of nodes of GPUs
	for _, n := range list {
		if slices.Contains(majors[gpuDriver(majors)], uint32(n.Major)) && n.Minor < 254 /* nvidia-modeset and nvidiactl */ {
			unknown[int(n.Minor)] = true
		}
	}
	for _, g := range slices.Concat(inv.GPUs, inv.Excluded) {
		delete(unknown, g.Minor)
	}
	for _, f := range inv.Faulty {
		if unknown[f.GPU.Minor] || f.GPU.Minor < 0 && len(unknown) > 0 {
			return &FaultError{ID: f.GPU.BusID, Device: f.String(), Reason: f.Reason}
		}
	}
	for _, f := range inv.FaultyMIG {
		given := func(n devnode.Number) bool {
			return slices.Contains(majors[capsDriver], uint32(n.Major)) && n.Minor == int64(f.Instance.CIRight.Minor)
		}
		if f.Instance.CIRight.File != "" && slices.ContainsFunc(list, given) {
			return &FaultError{ID: f.Instance.Name(), Device: "a MIG device", Reason: f.Reason}
		}
	}
	return nil
}
