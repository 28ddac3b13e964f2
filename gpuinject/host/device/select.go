package device

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Ask gets what only NVML knows. fresh says that it was asked just now and not
// earlier; again wants just that. Its errors are turned into ErrFacts.
type Ask func(again bool) (facts *Facts, fresh bool, err error)

// ErrFacts says that Select had to ask NVML, and why that failed. It says nothing of
// the id.
var ErrFacts = errors.New("only NVML knows MIG devices by UUID and index")

// Select turns ids into devices, each once however often it is named. An id is
//
//	all                      every GPU that is not excluded (none on a host without
//	                         one); of a GPU that has MIG devices these, not the GPU
//	0, 1, …                  a GPU's index
//	GPU-fef8089b-…           a GPU's UUID in any case, or the beginning of exactly one
//	0000:65:00.0             a PCI bus id in any case, with a domain of 4 to 8 digits
//	MIG-a3cd0fca-…           a MIG device's UUID, or the beginning of exactly one
//	MIG-GPU-fef8089b-…/1/0   a MIG device by its GPU and the ids of its instances
//	0:1                      MIG device 1 of GPU 0, as nvidia-smi -L counts them
//
// Only the first and the last form of MIG devices need ask. An unknown id is an error
// that lists what the host has. That a GPU which is named has MIG devices is the
// caller's to judge.
func (inv *Inventory) Select(ids []string, ask Ask) (Set, error) {
	var set Set
	for _, id := range ids {
		switch {
		case id == "all":
			if err := inv.addAll(&set); err != nil {
				return Set{}, err
			}
		case IsMIG(id):
			in, err := inv.findMIG(id, ask)
			if err != nil {
				return Set{}, err
			}
			set.AddMIG(in)
		default:
			i, err := inv.find(id)
			if err != nil {
				return Set{}, err
			}
			set.AddGPU(inv.GPUs[i])
		}
	}
	return set, nil
}

func (inv *Inventory) addAll(set *Set) error {
	for _, gpu := range inv.GPUs {
		whole, err := inv.whole(gpu)
		if err != nil {
			return err
		}
		if whole {
			set.AddGPU(gpu)
			continue
		}
		instances, err := inv.InstancesOf(gpu)
		if err != nil {
			return err
		}
		for _, in := range instances {
			set.AddMIG(in)
		}
	}
	return nil
}

// find returns the index of the one GPU that id names.
func (inv *Inventory) find(id string) (int, error) {
	switch {
	case id == "tegra" && inv.Platform == Tegra:
		return 0, nil // what the device plugin calls it
	case isDigits(id):
		if n, err := strconv.Atoi(id); err == nil && n < len(inv.GPUs) {
			return n, nil
		}
	case hasPrefixFold(id, "GPU-"):
		return inv.findUUID(id)
	default:
		if want, ok := parseBusID(id); ok {
			same := func(g GPU) bool { have, _ := parseBusID(g.BusID); return have == want }
			if i := slices.IndexFunc(inv.GPUs, same); i >= 0 {
				return i, nil
			}
			if slices.ContainsFunc(inv.Excluded, same) {
				return 0, inv.excluded(id)
			}
		}
	}
	return 0, fmt.Errorf("unknown GPU %q: %s", cut(id), inv.list())
}

// findUUID resolves a UUID or the beginning of one.
func (inv *Inventory) findUUID(id string) (int, error) {
	if len(id) == len("GPU-") {
		return 0, fmt.Errorf("GPU %q is the beginning of every UUID: %s", id, inv.list())
	}
	starts := func(g GPU) bool { return hasPrefixFold(g.UUID, id) }
	var found []int
	for i, g := range inv.GPUs {
		if starts(g) {
			found = append(found, i)
		}
	}
	switch {
	case len(found) == 1:
		return found[0], nil
	case len(found) > 1:
		var names []string
		for _, i := range found {
			names = append(names, inv.describe(inv.GPUs[i]))
		}
		return 0, fmt.Errorf("GPU %q is the beginning of %d UUIDs: %s", cut(id), len(found), strings.Join(names, ", "))
	case slices.ContainsFunc(inv.Excluded, starts):
		return 0, inv.excluded(id)
	}
	return 0, fmt.Errorf("unknown GPU %q: %s", cut(id), inv.list())
}

func (inv *Inventory) excluded(id string) error {
	return fmt.Errorf("GPU %q is excluded from use on this host (NVreg_ExcludedGpus): %s", cut(id), inv.list())
}

// list says in one line what the host has.
func (inv *Inventory) list() string {
	if len(inv.GPUs) == 0 {
		return "this host has no usable GPU"
	}
	var names []string
	for _, g := range inv.GPUs {
		names = append(names, inv.describe(g))
	}
	return "this host has " + strings.Join(names, ", ")
}

func (inv *Inventory) describe(g GPU) string {
	if g.BusID == "" {
		return fmt.Sprintf("one device, %q or %q: %s", "all", "0", g.Model)
	}
	uuid := g.UUID
	if uuid == "" {
		uuid = "UUID not known before nvidia-smi ran once"
	}
	mig := ""
	if instances, err := inv.InstancesOf(g); err == nil && len(instances) > 0 {
		mig = fmt.Sprintf(", %d MIG devices", len(instances))
	} else if n, err := inv.Withheld(g); err == nil && n > 0 {
		mig = ", MIG devices of others"
	}
	return fmt.Sprintf("%d (%s, %s%s)", g.Index, uuid, g.BusID, mig)
}

func hasPrefixFold(s, prefix string) bool {
	return len(s) >= len(prefix) && strings.EqualFold(s[:len(prefix)], prefix)
}
