package require

import (
	"slices"
	"strings"
)

// Host is what is known of a host, and of one GPU of it. What is empty is not known.
type Host struct {
	// Driver is a version: "580.159.04".
	Driver string
	// CUDA is a version: "13.0".
	CUDA string
	// GPU is the GPU that arch and brand are about; nil if there is none, and they hold then.
	GPU *GPU
	// Index is the GPU's index, for messages; -1 if it stands for no particular GPU.
	Index int
}

// GPU is what is known of a GPU.
type GPU struct {
	// Arch is the compute capability: "9.0".
	Arch string
	// Brand is NVML's, as it is written in requirements: "nvidia", "geforcertx".
	Brand string
}

// Verdict is the outcome of a check.
type Verdict int

// Verdicts.
const (
	// Unmet: whatever is not known, the requirement is not satisfied.
	Unmet Verdict = iota
	// Unknown: it depends on what is not known.
	Unknown
	// Met: the requirement is satisfied.
	Met
)

// Check reports whether one of the groups holds, and which: the first that does or, if the verdict
// is Unknown, the first that may. The group is nil if nothing is required.
func (e Expression) Check(h Host) (Verdict, Group) {
	if len(e) == 0 {
		return Met, nil
	}
	var (
		best  = Unmet
		group Group
	)
	for _, g := range e {
		if v, _ := g.Check(h); v > best {
			best, group = v, g
		}
	}
	return best, group
}

// Check reports whether all terms hold. If not, term is the first that does not or may not.
func (g Group) Check(h Host) (worst Verdict, term Term) {
	worst = Met
	for _, t := range g {
		if v := t.check(h); v < worst {
			worst, term = v, t
		}
	}
	return worst, term
}

func (t Term) check(h Host) Verdict {
	var have string
	switch t.Property {
	case CUDA:
		have = h.CUDA
	case Driver:
		have = h.Driver
	case Arch, Brand:
		if h.GPU == nil {
			return Met
		}
		if have = h.GPU.Arch; t.Property == Brand {
			have = h.GPU.Brand
		}
	}
	if have == "" {
		return Unknown
	}
	if t.Property == Brand {
		return verdict(strings.EqualFold(have, t.brand) == (t.operator == "="))
	}
	v, err := parseVersion(have)
	if err != nil {
		return Unknown
	}
	order := slices.Compare(v, t.version)
	switch t.operator {
	case "=":
		return verdict(order == 0)
	case "!=":
		return verdict(order != 0)
	case "<":
		return verdict(order < 0)
	case "<=":
		return verdict(order <= 0)
	case ">":
		return verdict(order > 0)
	default:
		return verdict(order >= 0)
	}
}

func verdict(holds bool) Verdict {
	if holds {
		return Met
	}
	return Unmet
}
