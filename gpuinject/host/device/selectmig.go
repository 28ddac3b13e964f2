package device

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// maxListed bounds how many MIG devices a message names.
const maxListed = 32

// IsMIG tells whether id has the form of a MIG device's name: "MIG-<uuid>",
// "MIG-GPU-<uuid>/<gi>/<ci>" or "<gpu>:<index>".
func IsMIG(id string) bool {
	_, _, ok := pair(id)
	return ok || hasPrefixFold(id, "MIG-")
}

// pair takes "0:1" apart. Numbers beyond any device's are -1.
func pair(id string) (gpu, index int, ok bool) {
	a, b, ok := strings.Cut(id, ":")
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

// older takes "MIG-GPU-<uuid>/<gi>/<ci>" apart.
func older(id string) (gpu string, gi, ci int, ok bool) {
	if !hasPrefixFold(id, "MIG-GPU-") {
		return "", 0, 0, false
	}
	parts := strings.Split(id[len("MIG-"):], "/")
	if len(parts) != 3 {
		return "", 0, 0, false
	}
	gi, ci, ok = pair(parts[1] + ":" + parts[2])
	return parts[0], gi, ci, ok
}

// findMIG returns the one MIG device that id names. What exists is what procfs shows
// now; NVML only tells which of them a UUID or an index means.
func (inv *Inventory) findMIG(id string, ask Ask) (Instance, error) {
	if gpu, gi, ci, ok := older(id); ok {
		i, err := inv.findUUID(gpu)
		if err != nil {
			return Instance{}, inv.unknownMIG(id, nil)
		}
		in, ok, err := inv.instance(inv.GPUs[i], gi, ci)
		if err == nil && !ok {
			err = inv.unknownMIG(id, nil)
		}
		return in, err
	}
	if len(id) == len("MIG-") {
		return Instance{}, fmt.Errorf("MIG device %q is the beginning of every UUID: %s", id, inv.listMIG(nil))
	}
	if all, err := inv.Instances(); err != nil || len(all) == 0 {
		// Nothing that NVML could mean.
		return Instance{}, cmp.Or(err, inv.unknownMIG(id, nil))
	}
	for again := false; ; again = true {
		facts, fresh, err := ask(again)
		if err != nil {
			return Instance{}, fmt.Errorf("MIG device %q: %w: %w", cut(id), ErrFacts, err)
		}
		in, named, exists, err := inv.match(id, facts)
		switch {
		case err != nil || named && exists:
			return in, err
		case named && again:
			return Instance{}, fmt.Errorf("MIG device %q is known to NVML and not to procfs: MIG is being configured, try again: %s", cut(id), inv.listMIG(nil))
		case !named && fresh:
			return Instance{}, inv.unknownMIG(id, facts)
		}
		// What NVML said, or what we read, is of another time: once more, both.
		inv.layouts = nil
	}
}

// match looks id up in NVML's facts. named says that they have it, exists that procfs
// has it too.
func (inv *Inventory) match(id string, facts *Facts) (in Instance, named, exists bool, err error) {
	var found []Instance
	index, number, byIndex := pair(id)
	for _, gpu := range inv.GPUs {
		if byIndex && gpu.Index != index {
			continue
		}
		for _, f := range facts.instancesOf(gpu) {
			if byIndex && f.Index != number || !byIndex && !hasPrefixFold(f.UUID, id) {
				continue
			}
			if in, exists, err = inv.instance(gpu, f.GI, f.CI); err != nil {
				return Instance{}, false, false, err
			}
			if !exists {
				// NVML in a container may tell of all, if it asks procfs alone.
				if other, err := inv.isElsewhere(gpu, f.GI, f.CI); other || err != nil {
					if err != nil {
						return Instance{}, false, false, err
					}
					continue
				}
				in = Instance{GPU: gpu.Index, Minor: gpu.Minor, GI: f.GI, CI: f.CI}
			}
			in.UUID, in.Index, in.Profile = f.UUID, f.Index, f.Name
			found = append(found, in)
		}
	}
	switch len(found) {
	case 0:
		return Instance{}, false, false, nil
	case 1:
		return found[0], true, exists, nil
	}
	return Instance{}, false, false, fmt.Errorf("MIG device %q is the beginning of %d UUIDs: %s", cut(id), len(found), listed(found))
}

// instance finds a MIG device of a GPU by the ids of its instances.
func (inv *Inventory) instance(gpu GPU, gi, ci int) (Instance, bool, error) {
	list, err := inv.InstancesOf(gpu)
	if err != nil {
		return Instance{}, false, err
	}
	for _, in := range list {
		if in.GI == gi && in.CI == ci {
			return in, true, nil
		}
	}
	return Instance{}, false, nil
}

// instancesOf are the MIG devices that NVML knows of a GPU.
func (f *Facts) instancesOf(gpu GPU) []InstanceFacts {
	want, _ := parseBusID(gpu.BusID)
	for _, g := range f.GPUs {
		if have, ok := parseBusID(g.BusID); ok && have == want {
			return g.Instances
		}
	}
	return nil
}

// Annotate enters into the MIG devices of the set what NVML calls them.
func (inv *Inventory) Annotate(set Set, facts *Facts) {
	for i := range set.MIG {
		in := &set.MIG[i]
		if in.GPU >= len(inv.GPUs) {
			continue
		}
		for _, f := range facts.instancesOf(inv.GPUs[in.GPU]) {
			if f.GI == in.GI && f.CI == in.CI {
				in.UUID, in.Index, in.Profile = f.UUID, f.Index, f.Name
			}
		}
	}
}

func (inv *Inventory) unknownMIG(id string, facts *Facts) error {
	return fmt.Errorf("unknown MIG device %q: %s", cut(id), inv.listMIG(facts))
}

// listMIG says in one line which MIG devices the host has.
func (inv *Inventory) listMIG(facts *Facts) string {
	all, err := inv.Instances()
	if err != nil || len(all) == 0 {
		return "there is no MIG device: " + inv.list()
	}
	return "this host has " + inv.DescribeMIG(all, facts)
}

// listed names MIG devices in a message: all names where NVML told them.
func listed(list []Instance) string {
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

// DescribeMIG names MIG devices in a message, by NVML's names where facts has them; it
// may be nil.
func (inv *Inventory) DescribeMIG(list []Instance, facts *Facts) string {
	set := Set{MIG: slices.Clone(list)}
	if facts != nil {
		inv.Annotate(set, facts)
	}
	return listed(set.MIG)
}
