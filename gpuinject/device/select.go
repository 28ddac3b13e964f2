package device

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Select turns ids into GPUs, in index order, each GPU once however often it is
// named. An id is
//
//	all             every GPU that is not excluded (none on a host without one)
//	0, 1, …         an index
//	GPU-fef8089b-…  a UUID in any case, or the beginning of exactly one
//	0000:65:00.0    a PCI bus id in any case, with a domain of 4 to 8 digits
//
// An unknown id is an error that lists what the host has. MIG instances ("MIG-…",
// "0:1") are an error of their own.
func (inv *Inventory) Select(ids []string) ([]GPU, error) {
	chosen := make([]bool, len(inv.GPUs))
	for _, id := range ids {
		if id == "all" {
			for i := range chosen {
				chosen[i] = true
			}
			continue
		}
		i, err := inv.find(id)
		if err != nil {
			return nil, err
		}
		chosen[i] = true
	}
	var gpus []GPU
	for i, yes := range chosen {
		if yes {
			gpus = append(gpus, inv.GPUs[i])
		}
	}
	return gpus, nil
}

// find returns the index of the one GPU that id names.
func (inv *Inventory) find(id string) (int, error) {
	switch {
	case isMIG(id):
		return 0, fmt.Errorf("GPU %q: MIG instances cannot be selected by this release; ask for a whole GPU: %s", cut(id), inv.list())
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
			names = append(names, describe(inv.GPUs[i]))
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

// isMIG recognises "MIG-<uuid>", "MIG-GPU-<uuid>/<gi>/<ci>" and "<gpu>:<instance>".
func isMIG(id string) bool {
	gpu, instance, ok := strings.Cut(id, ":")
	return hasPrefixFold(id, "MIG-") || ok && isDigits(gpu) && isDigits(instance)
}

// list says in one line what the host has.
func (inv *Inventory) list() string {
	if len(inv.GPUs) == 0 {
		return "this host has no usable GPU"
	}
	var names []string
	for _, g := range inv.GPUs {
		names = append(names, describe(g))
	}
	return "this host has " + strings.Join(names, ", ")
}

func describe(g GPU) string {
	uuid := g.UUID
	if uuid == "" {
		uuid = "UUID not known before nvidia-smi ran once"
	}
	return fmt.Sprintf("%d (%s, %s)", g.Index, uuid, g.BusID)
}

func hasPrefixFold(s, prefix string) bool {
	return len(s) >= len(prefix) && strings.EqualFold(s[:len(prefix)], prefix)
}
