package device

import (
	"slices"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/devnode"
)

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
