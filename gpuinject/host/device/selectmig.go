package device

import (
	"fmt"
	"slices"
	"strings"
)

// maxListed bounds how many MIG devices a message names.
const maxListed = 32

// IsMIG reports whether id has the form of a MIG device's name: "MIG-<uuid>",
// "MIG-GPU-<uuid>/<gi>/<ci>" or "<gpu>:<index>".
func IsMIG(id string) bool {
	gpu, index, isPair := strings.Cut(id, ":")
	return isPair && !isNotNumber(gpu) && !isNotNumber(index) || hasPrefixFold(id, "MIG-")
}

// isByInstances reports whether id is of the older form, which needs no NVML.
func isByInstances(id string) bool {
	return hasPrefixFold(id, "MIG-GPU-") && strings.Count(id, "/") == 2
}

// NeedsFacts reports whether one of the ids can be resolved only by Facts that are newer than
// these, which may be the zero value: it names a MIG device by UUID or index, and facts have no
// such device that exists. The caller then asks the probe, discovers the inventory again, and calls
// Select with both.
func (inv Inventory) NeedsFacts(ids []string, facts Facts) bool {
	return len(inv.MIG) > 0 && slices.ContainsFunc(ids, func(id string) bool {
		return IsMIG(id) && !isByInstances(id) && !strings.EqualFold(id, "MIG-") && len(inv.match(id, facts)) == 0
	})
}

func (inv Inventory) findMIG(id string, facts Facts) (Instance, error) {
	found := inv.match(id, facts)
	switch {
	case strings.EqualFold(id, "MIG-"):
		return Instance{}, fmt.Errorf("MIG device %q is the beginning of every UUID: %s", id, inv.listMIG(facts))
	case len(found) == 1:
		return found[0], nil
	case len(found) > 1:
		return Instance{}, fmt.Errorf("MIG device %.256q is the beginning of %d UUIDs: %s", id, len(found), DescribeMIG(found))
	case len(facts.GPUs) == 0 && facts.Driver == "" && inv.NeedsFacts([]string{id}, facts):
		return Instance{}, fmt.Errorf("MIG device %.256q: %w", id, ErrFacts)
	}
	return Instance{}, fmt.Errorf("unknown MIG device %.256q: %s", id, inv.listMIG(facts))
}

// match returns the MIG devices of the inventory that id names. Facts say only which one a UUID or
// an index means.
func (inv Inventory) match(id string, facts Facts) []Instance {
	return slices.DeleteFunc(inv.Annotate(inv.MIG, facts), func(in Instance) bool { return !in.isNamed(id) })
}

// isNamed reports whether id names the MIG device: by the beginning of the GPU's UUID and the ids of
// the instances, by NVML's index, or by the beginning of NVML's UUID.
func (in Instance) isNamed(id string) bool {
	if isByInstances(id) {
		gpu, instances, _ := strings.Cut(id, "/")
		return hasPrefixFold("MIG-"+in.Parent, gpu) && instances == fmt.Sprintf("%d/%d", in.GI, in.CI)
	}
	return hasPrefixFold(in.UUID, id) || in.UUID != "" && id == fmt.Sprintf("%d:%d", in.GPU, in.Index)
}

func (inv Inventory) listMIG(facts Facts) string {
	if len(inv.MIG) == 0 {
		return "there is no MIG device: " + inv.list()
	}
	return "this host has " + DescribeMIG(inv.Annotate(inv.MIG, facts))
}

// DescribeMIG names MIG devices in a message.
func DescribeMIG(list []Instance) string {
	var names []string
	for i, in := range list {
		if i == maxListed {
			names = append(names, fmt.Sprintf("%d more", len(list)-i))
			break
		}
		name := in.Name()
		if in.UUID != "" {
			name = fmt.Sprintf("%d:%d (%s, %d/%d)", in.GPU, in.Index, in.UUID, in.GI, in.CI)
		}
		names = append(names, name)
	}
	return strings.Join(names, ", ")
}
