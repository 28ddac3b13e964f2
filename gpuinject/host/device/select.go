package device

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// ErrFacts is returned by Select if it is called without Facts for an id that only NVML can
// resolve. It does not mean that the id is unknown.
var ErrFacts = errors.New("only NVML can resolve this UUID or index")

// FaultError is returned by Select for an id that names a GPU or MIG device that cannot be used.
type FaultError struct {
	ID     string // as it was asked for
	Device string // "GPU 1"
	Reason string
}

func (e *FaultError) Error() string {
	return fmt.Sprintf("%s (%.256q), which cannot be used: %s", e.Device, e.ID, e.Reason)
}

// Faults lists the faulty GPUs and MIG devices as errors.
func (inv Inventory) Faults() []error {
	var list []error
	for _, f := range inv.Faulty {
		list = append(list, &FaultError{ID: f.GPU.BusID, Device: f.String(), Reason: f.Reason})
	}
	for _, f := range inv.FaultyMIG {
		list = append(list, &FaultError{ID: f.Instance.Name(), Device: "a MIG device", Reason: f.Reason})
	}
	return list
}

// Select turns ids into devices. Each device is listed once, however often it is named. An id is
//
//	all                      every GPU that is neither excluded nor faulty (none on a host without
//	                         one), but instead of a MIG-partitioned GPU its MIG devices
//	0, 1, …                  a GPU's index
//	GPU-fef8089b-…           a GPU's UUID in any case, or the beginning of exactly one
//	0000:65:00.0             a PCI bus id in any case, with a domain of 1 to 8 digits
//	MIG-a3cd0fca-…           a MIG device's UUID, or the beginning of exactly one
//	MIG-GPU-fef8089b-…/1/0   a MIG device by its GPU and the ids of its instances
//	0:1                      MIG device 1 of GPU 0, as nvidia-smi -L counts them
//
// Only the UUID and the index of a MIG device need facts, and every UUID while the driver does not
// know a GPU's; see NeedsFacts. An unknown id is an error
// that lists the devices of the host. The caller decides whether a GPU that is named may be
// MIG-partitioned.
func (inv Inventory) Select(ids []string, facts Facts) (Set, error) {
	var set Set
	asked := len(facts.GPUs) > 0 || facts.Driver != ""
	inv = inv.WithUUIDs(facts)
	for _, id := range ids {
		switch {
		case !asked && inv.lacksUUID(id):
			return Set{}, fmt.Errorf("GPU %.256q, while the driver does not know the UUID of every GPU: %w", id, ErrFacts)
		case id == "all":
			for _, gpu := range inv.GPUs {
				if inv.IsWhole(gpu) {
					set.AddGPU(gpu)
				}
			}
			for _, in := range inv.MIG {
				set.AddMIG(in)
			}
		case len(inv.GPUs) == 1 && inv.GPUs[0].Alias == "all" && inv.IsFull(id): // WSL2
			set.AddGPU(inv.GPUs[0])
		case IsMIG(id):
			in, err := inv.findMIG(id, facts)
			if err != nil {
				return Set{}, err
			}
			set.AddMIG(in)
		default:
			gpu, err := inv.find(id)
			if err != nil {
				return Set{}, err
			}
			set.AddGPU(gpu)
		}
	}
	return set, nil
}

// IsFull reports whether id is the full name of a device, as a device plugin gives it to the
// kubelet: GPU-<uuid>, MIG-<uuid>, MIG-GPU-<uuid>/<gi>/<ci>, or a name that this kind of host has
// for its GPU. The device need not exist.
func (inv Inventory) IsFull(id string) bool {
	if rest, ok := strings.CutPrefix(id, "MIG-GPU-"); ok {
		uuid, instances, _ := strings.Cut(rest, "/")
		gi, ci, _ := strings.Cut(instances, "/")
		return isUUID("GPU-"+uuid) && !isNotNumber(gi) && !isNotNumber(ci)
	}
	uuid, ok := strings.CutPrefix(id, "MIG-")
	return isUUID(id) || ok && isUUID("GPU-"+uuid) ||
		slices.ContainsFunc(inv.GPUs, func(g GPU) bool { return g.Alias != "" && g.Alias == id })
}

func (inv Inventory) find(id string) (GPU, error) {
	if strings.EqualFold(id, "GPU-") {
		return GPU{}, fmt.Errorf("GPU %q is the beginning of every UUID: %s", id, inv.list())
	}
	isUUID := hasPrefixFold(id, "GPU-")
	named := func(g GPU) bool {
		return isIndex(id, g.Index) || isUUID && hasPrefixFold(g.UUID, id) ||
			sameBusID(g.BusID, id) || g.Alias != "" && g.Alias == id
	}
	found := slices.DeleteFunc(slices.Clone(inv.GPUs), func(g GPU) bool { return !named(g) })
	faulty := slices.DeleteFunc(slices.Clone(inv.Faulty), func(f Fault) bool { return !named(f.GPU) })
	switch {
	case len(found) == 1 && len(faulty) == 0:
		return found[0], nil
	case len(found)+len(faulty) > 1:
		for _, f := range faulty {
			found = append(found, f.GPU)
		}
		return GPU{}, fmt.Errorf("GPU %.256q is the beginning of %d UUIDs: %s", id, len(found), inv.describe(found))
	case len(faulty) == 1:
		return GPU{}, &FaultError{ID: id, Device: faulty[0].String(), Reason: faulty[0].Reason}
	case slices.ContainsFunc(inv.Excluded, named):
		return GPU{}, fmt.Errorf("GPU %.256q is excluded from use on this host (NVreg_ExcludedGpus): %s", id, inv.list())
	}
	return GPU{}, fmt.Errorf("unknown GPU %.256q%s: %s", id, hint(id), inv.list())
}

var (
	idRange = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[0-9]+-[0-9]+$`) })
	profile = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[0-9]+[cg]\.`) })
)

// hint says how to write what an unknown id may have meant: these forms are not in NVIDIA's contract.
func hint(id string) string {
	word := strings.ToLower(id)
	switch {
	case word == "all" || word == "none" || word == "void":
		return fmt.Sprintf(" (the word is %q)", word)
	case idRange().MatchString(id):
		return " (there are no ranges: name each, as 0,1,2)"
	case profile().MatchString(id):
		return " (a MIG device has no name by its profile: use its UUID, or GPU:index as 0:1; nvidia-smi -L lists them)"
	}
	return ""
}

func (inv Inventory) list() string {
	text := "this host has no usable GPU"
	if len(inv.GPUs) > 0 {
		text = "this host has " + inv.describe(inv.GPUs)
	}
	for _, f := range inv.Faulty {
		text += fmt.Sprintf(", and %s (%s), which cannot be used: %s", f, f.GPU.BusID, f.Reason)
	}
	return text
}

func (inv Inventory) describe(gpus []GPU) string {
	var names []string
	for _, g := range gpus {
		if g.BusID == "" {
			names = append(names, fmt.Sprintf("one device, %q or %q: %s", "all", "0", g.Model))
			continue
		}
		mig := ""
		if n := len(inv.InstancesOf(g)); n > 0 {
			mig = fmt.Sprintf(", %d MIG devices", n)
		} else if inv.Withheld(g) > 0 {
			mig = ", MIG devices of others"
		}
		uuid := cmp.Or(g.UUID, "UUID not known before nvidia-smi ran once")
		names = append(names, fmt.Sprintf("%d (%s, %s%s)", g.Index, uuid, g.BusID, mig))
	}
	return strings.Join(names, ", ")
}

func hasPrefixFold(s, prefix string) bool {
	return len(s) >= len(prefix) && strings.EqualFold(s[:len(prefix)], prefix)
}

// maxListed bounds how many MIG devices a message names.
const maxListed = 32

// IsMIG reports whether id has the form of a MIG device's name: "MIG-<uuid>",
// "MIG-GPU-<uuid>/<gi>/<ci>" or "<gpu>:<index>".
func IsMIG(id string) bool {
	gpu, index, isPair := strings.Cut(id, ":")
	return isPair && !isNotNumber(gpu) && !isNotNumber(index) || hasPrefixFold(id, "MIG-")
}

// isByInstances reports whether id has the older form, which needs no NVML.
func isByInstances(id string) bool {
	return hasPrefixFold(id, "MIG-GPU-") && strings.Count(id, "/") == 2
}

// WithUUIDs returns the inventory with NVML's UUIDs for GPUs whose UUID the driver does not know.
func (inv Inventory) WithUUIDs(facts Facts) Inventory {
	if !inv.LacksUUIDs() {
		return inv
	}
	inv.GPUs, inv.MIG = slices.Clone(inv.GPUs), slices.Clone(inv.MIG)
	for i, gpu := range inv.GPUs {
		for _, f := range facts.GPUs {
			if gpu.UUID == "" && sameBusID(f.BusID, gpu.BusID) && isUUID(f.UUID) {
				inv.GPUs[i].UUID = f.UUID
			}
		}
		for j := range inv.MIG {
			if inv.MIG[j].Minor == gpu.Minor {
				inv.MIG[j].Parent = inv.GPUs[i].UUID
			}
		}
	}
	return inv
}

// LacksUUIDs reports whether the driver does not know the UUID of a GPU on the PCI bus: nothing has
// opened it since boot.
func (inv Inventory) LacksUUIDs() bool {
	return slices.ContainsFunc(inv.GPUs, func(g GPU) bool { return g.UUID == "" && g.BusID != "" })
}

// lacksUUID reports whether id may be the UUID of a GPU, or name a MIG device by it, that the driver
// does not know.
func (inv Inventory) lacksUUID(id string) bool {
	uuid := id
	if isByInstances(id) {
		uuid, _, _ = strings.Cut(id[len("MIG-"):], "/")
	}
	known := func(g GPU) bool { return hasPrefixFold(g.UUID, uuid) }
	return hasPrefixFold(uuid, "GPU-") && len(uuid) > len("GPU-") && strings.Trim(uuid[len("GPU-"):], "0123456789abcdefABCDEF-") == "" && inv.LacksUUIDs() && !slices.ContainsFunc(inv.GPUs, known)
}

// NeedsFacts reports whether one of the ids can be resolved only by Facts that are newer than
// these, which may be the zero value: it names a MIG device by UUID or index, or a GPU whose UUID
// the driver does not know yet, and facts contain no existing device of that name. The caller then
// asks the probe, discovers the inventory again, and calls Select with both.
func (inv Inventory) NeedsFacts(ids []string, facts Facts) bool {
	known := inv.WithUUIDs(facts)
	return slices.ContainsFunc(ids, known.lacksUUID) || len(inv.MIG)+len(inv.FaultyMIG)+len(inv.Faulty) > 0 && slices.ContainsFunc(ids, func(id string) bool {
		return IsMIG(id) && !isByInstances(id) && !strings.EqualFold(id, "MIG-") &&
			len(inv.match(id, facts)) == 0 && len(inv.matchFaulty(id, facts)) == 0 && inv.faultyParent(id, facts) == nil
	})
}

func (inv Inventory) findMIG(id string, facts Facts) (Instance, error) {
	found := inv.match(id, facts)
	faulty := inv.matchFaulty(id, facts)
	switch {
	case strings.EqualFold(id, "MIG-"):
		return Instance{}, fmt.Errorf("MIG device %q is the beginning of every UUID: %s", id, inv.listMIG(facts))
	case len(found) == 1 && len(faulty) == 0:
		return found[0], nil
	case len(found)+len(faulty) > 1:
		for _, f := range faulty {
			found = append(found, f.Instance)
		}
		return Instance{}, fmt.Errorf("MIG device %.256q is the beginning of %d UUIDs: %s", id, len(found), DescribeMIG(found))
	case len(faulty) == 1:
		return Instance{}, &FaultError{ID: id, Device: "MIG device " + faulty[0].Instance.Name(), Reason: faulty[0].Reason}
	case inv.faultyParent(id, facts) != nil:
		gpu := inv.faultyParent(id, facts)
		return Instance{}, &FaultError{ID: id, Device: "a MIG device of " + gpu.String(), Reason: gpu.Reason}
	case facts.unknown() != "" && !isByInstances(id):
		return Instance{}, fmt.Errorf("MIG device %.256q: %w: %s", id, ErrFacts, facts.unknown())
	case len(facts.GPUs) == 0 && facts.Driver == "" && inv.NeedsFacts([]string{id}, facts):
		return Instance{}, fmt.Errorf("MIG device %.256q: %w", id, ErrFacts)
	}
	return Instance{}, fmt.Errorf("unknown MIG device %.256q: %s", id, inv.listMIG(facts))
}

// match returns the MIG devices of the inventory that id names. Facts are used only to resolve a
// UUID or an index.
func (inv Inventory) match(id string, facts Facts) []Instance {
	return slices.DeleteFunc(inv.Annotate(inv.MIG, facts), func(in Instance) bool { return !in.isNamed(id) })
}

func (inv Inventory) matchFaulty(id string, facts Facts) []MIGFault {
	var list []MIGFault
	for _, f := range inv.FaultyMIG {
		if f.Instance = inv.Annotate([]Instance{f.Instance}, facts)[0]; f.Instance.isNamed(id) {
			list = append(list, f)
		}
	}
	return list
}

// faultyParent returns the faulty GPU of the MIG device that id names, or nil. Its MIG devices are
// not in the inventory, but NVML may know them.
func (inv Inventory) faultyParent(id string, facts Facts) *Fault {
	for _, f := range inv.Faulty {
		if gpu, _, ok := strings.Cut(id, ":"); ok && isIndex(gpu, f.GPU.Index) {
			return &f
		}
		if isByInstances(id) && f.GPU.UUID != "" && hasPrefixFold(id, "MIG-"+f.GPU.UUID+"/") {
			return &f
		}
		for _, g := range facts.GPUs {
			named := isByInstances(id) && hasPrefixFold(id, "MIG-"+g.UUID+"/") ||
				slices.ContainsFunc(g.Instances, func(in InstanceFacts) bool { return len(id) > len("MIG-") && hasPrefixFold(in.UUID, id) })
			if named && sameBusID(g.BusID, f.GPU.BusID) {
				return &f
			}
		}
	}
	return nil
}

// isNamed reports whether id names the MIG device: by the beginning of the GPU's UUID and the ids
// of the instances, by NVML's index, or by the beginning of NVML's UUID.
func (in Instance) isNamed(id string) bool {
	if isByInstances(id) {
		gpu, instances, _ := strings.Cut(id, "/")
		return hasPrefixFold("MIG-"+in.Parent, gpu) && instances == fmt.Sprintf("%d/%d", in.GI, in.CI)
	}
	if gpu, index, ok := strings.Cut(id, ":"); ok {
		return in.UUID != "" && isIndex(gpu, in.GPU) && isIndex(index, in.Index)
	}
	return hasPrefixFold(in.UUID, id)
}

// isIndex reports whether id is this number, also with leading zeros.
func isIndex(id string, number int) bool {
	n, err := strconv.ParseUint(id, 10, 31)
	return err == nil && int(n) == number
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
