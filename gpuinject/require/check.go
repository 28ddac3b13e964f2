package require

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/request"
)

// Skip tells the user how to start a container whose image requires what this host lacks.
const Skip = "set " + EnvDisable + "=true in the container, or policy.disable-require in the shim's configuration"

// Host holds a host's properties. An empty property is unknown.
type Host struct {
	// Driver and CUDA are versions: "580.159.04", "13.0".
	Driver, CUDA string
	// GPUs of the container. Without one, every requirement on GPUs holds.
	GPUs []GPU
	// CUDAOnly is true on a host where the driver and the brand cannot be known: they then satisfy
	// every requirement, as in NVIDIA's stack.
	CUDAOnly bool
}

// GPU holds a GPU's properties. An empty property is unknown.
type GPU struct {
	Index int
	// Arch is the compute capability: "9.0".
	Arch string
	// Brand is NVML's brand as written in requirements: "nvidia", "geforcertx".
	Brand string
}

// Verdict is the outcome of a check.
type Verdict int

// Verdicts.
const (
	// Unmet: the requirement is not satisfied, whatever the unknown properties are.
	Unmet Verdict = iota
	// Unknown: it depends on unknown properties.
	Unknown
	// Met: the requirement is satisfied.
	Met
)

// Check returns whether every GPU of the host satisfies the requirement, and the alternatives that
// hold: several if the GPUs need different ones. The error says why the verdict is not Met.
func (r Requirement) Check(h Host) (worst Verdict, by []string, err error) {
	alone := []Host{h}
	if len(h.GPUs) > 0 {
		alone = nil
		for _, gpu := range h.GPUs {
			one := h
			one.GPUs = []GPU{gpu}
			alone = append(alone, one)
		}
	}
	worst, by = Met, []string{}
	for _, h := range alone {
		verdict, g := r.Expression.check(h)
		switch {
		case verdict == Met:
			if text := g.String(); g != nil && !slices.Contains(by, text) {
				by = append(by, text)
			}
		case verdict < worst && verdict == Unmet:
			err = r.unsatisfied(h)
		case verdict < worst:
			err = g.unknown(h)
		}
		worst = min(worst, verdict)
	}
	return worst, by, err
}

// unsatisfied names the first alternative, which is the main condition in CUDA images; the others
// are for drivers with forward compatibility.
func (r Requirement) unsatisfied(h Host) error {
	_, t := r.Expression[0].check(h)
	others := ""
	if n := len(r.Expression) - 1; n > 0 {
		others = fmt.Sprintf(" (nor is any of %d alternatives)", n)
	}
	remedy := "update the driver or use another image"
	if t.property == arch || t.property == brand {
		remedy = "use another GPU or another image"
	}
	return fmt.Errorf("%s: %s is not satisfied%s: this host has %s: %s; or %s",
		r.Variable, request.Quote(r.Expression[0].String()), others, r.describe(h), remedy, Skip)
}

// describe lists what is known of a host and its first GPU.
func (r Requirement) describe(h Host) string {
	var has []string
	if h.Driver != "" {
		has = append(has, "driver "+h.Driver)
	}
	if h.CUDA != "" {
		has = append(has, "CUDA "+h.CUDA)
	}
	for _, property := range []string{arch, brand} {
		if len(h.GPUs) > 0 && r.Expression.isAbout(property) {
			has = append(has, fmt.Sprintf("GPU %d of %s %s", h.GPUs[0].Index, property, cmp.Or(h.fact(property), "that NVML does not report")))
		}
	}
	return cmp.Or(strings.Join(has, ", "), "a driver of unknown version")
}

// unknown says what is unknown although NVML was asked.
func (g Group) unknown(h Host) error {
	switch _, t := g.check(h); t.property {
	case cuda:
		return errors.New("NVML does not report which version of CUDA the driver supports")
	case driver:
		return fmt.Errorf("the driver's version %s is not made of digits and dots", request.Quote(h.Driver))
	default:
		return fmt.Errorf("NVML does not report the %s of GPU %d", t.property, h.GPUs[0].Index)
	}
}

// check reports whether one of the groups holds on a host with at most one GPU, and which: the
// first that does or, if the verdict is Unknown, the first that may. The group is nil if nothing is
// required.
func (e Expression) check(h Host) (best Verdict, group Group) {
	if len(e) == 0 {
		return Met, nil
	}
	for _, g := range e {
		if v, _ := g.check(h); v > best {
			best, group = v, g
		}
	}
	return best, group
}

// check reports whether all terms hold. If not, first is the first term that does not, or may not.
func (g Group) check(h Host) (worst Verdict, first term) {
	worst = Met
	for _, t := range g {
		if v := t.check(h); v < worst {
			worst, first = v, t
		}
	}
	return worst, first
}

func (t term) check(h Host) Verdict {
	if len(h.GPUs) == 0 && (t.property == arch || t.property == brand) {
		return Met
	}
	order, have := 0, h.fact(t.property)
	if have == "" && h.CUDAOnly && (t.property == driver || t.property == brand) {
		return Met
	}
	if have == "" {
		return Unknown
	}
	if t.property == brand {
		if !strings.EqualFold(have, t.brand) {
			order = 1
		}
	} else {
		v, err := parseVersion(have)
		if err != nil {
			return Unknown
		}
		order = slices.Compare(v, t.version)
	}
	if t.holds(order) {
		return Met
	}
	return Unmet
}

// fact returns what is known about a property, on a host with at most one GPU.
func (h Host) fact(property string) string {
	switch property {
	case cuda:
		return h.CUDA
	case driver:
		return h.Driver
	case arch:
		return h.GPUs[0].Arch
	default:
		return h.GPUs[0].Brand
	}
}
