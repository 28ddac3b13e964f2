package device

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// maxListed bounds how many MIG devices a message names.
const maxListed = 32

// IsMIG reports whether id has the form of a MIG device's name: "MIG-<uuid>",
// "MIG-GPU-<uuid>/<gi>/<ci>" or "<gpu>:<index>".
func IsMIG(id string) bool {
	_, _, isPair := parsePair(id, ":")
	return isPair || hasPrefixFold(id, "MIG-")
}

// parsePair parses two numbers: "0:1". Numbers beyond any device's are -1.
func parsePair(s, separator string) (first, second int, ok bool) {
	a, b, ok := strings.Cut(s, separator)
	if !ok || !isDigits(a) || !isDigits(b) {
		return 0, 0, false
	}
	number := func(s string) int {
		n, err := strconv.ParseUint(s, 10, 16)
		if err != nil {
			return -1
		}
		return int(n)
	}
	return number(a), number(b), true
}

// parseByInstances parses "MIG-GPU-<uuid>/<gi>/<ci>".
func parseByInstances(id string) (gpu string, gi, ci int, ok bool) {
	if !hasPrefixFold(id, "MIG-GPU-") {
		return "", 0, 0, false
	}
	gpu, instances, _ := strings.Cut(id[len("MIG-"):], "/")
	gi, ci, ok = parsePair(instances, "/")
	return gpu, gi, ci, ok
}

// NeedsFacts reports whether one of the ids can be resolved only by Facts that are newer than
// these, which may be the zero value: it names a MIG device by UUID or index, and facts have no
// such device that exists. The caller then asks the probe, discovers the inventory again, and calls
// Select with both.
func (inv Inventory) NeedsFacts(ids []string, facts Facts) bool {
	return len(inv.MIG) > 0 && slices.ContainsFunc(ids, func(id string) bool {
		_, _, _, byInstances := parseByInstances(id)
		return IsMIG(id) && !byInstances && !strings.EqualFold(id, "MIG-") && len(inv.match(id, facts)) == 0
	})
}

// findMIG returns the one MIG device that id names.
func (inv Inventory) findMIG(id string, facts Facts) (Instance, error) {
	found := inv.match(id, facts)
	switch {
	case strings.EqualFold(id, "MIG-"):
		return Instance{}, fmt.Errorf("MIG device %q is the beginning of every UUID: %s", id, inv.listMIG(facts))
	case len(found) == 1:
		return found[0], nil
	case len(found) > 1:
		return Instance{}, fmt.Errorf("MIG device %q is the beginning of %d UUIDs: %s", cut(id), len(found), listInstances(found))
	case len(facts.GPUs) == 0 && facts.Driver == "" && inv.NeedsFacts([]string{id}, facts):
		return Instance{}, fmt.Errorf("MIG device %q: %w", cut(id), ErrFacts)
	}
	return Instance{}, fmt.Errorf("unknown MIG device %q: %s", cut(id), inv.listMIG(facts))
}

// match returns the MIG devices of the inventory that id names. Facts say only which one a UUID or
// an index means.
func (inv Inventory) match(id string, facts Facts) []Instance {
	index, number, byIndex := parsePair(id, ":")
	parent, gi, ci, byInstances := parseByInstances(id)
	return slices.DeleteFunc(inv.named(inv.MIG, facts), func(in Instance) bool {
		switch {
		case byInstances:
			return !hasPrefixFold(in.Parent, parent) || in.GI != gi || in.CI != ci
		case byIndex:
			return in.UUID == "" || in.GPU != index || in.Index != number
		}
		return !hasPrefixFold(in.UUID, id)
	})
}

// listMIG names the host's MIG devices in a message.
func (inv Inventory) listMIG(facts Facts) string {
	if len(inv.MIG) == 0 {
		return "there is no MIG device: " + inv.list()
	}
	return "this host has " + inv.DescribeMIG(inv.MIG, facts)
}

// DescribeMIG names MIG devices in a message, with NVML's names if facts have them.
func (inv Inventory) DescribeMIG(list []Instance, facts Facts) string {
	return listInstances(inv.named(list, facts))
}

// listInstances names MIG devices in a message.
func listInstances(list []Instance) string {
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
