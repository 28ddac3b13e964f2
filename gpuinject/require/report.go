package require

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/request"
)

// Skip is how to start a container whose image requires what this host lacks.
const Skip = "set " + EnvDisable + "=true in the container, or policy.disable-require in the shim's configuration"

// CheckAll returns the verdict on each requirement: the worst of all hosts.
func CheckAll(list []Requirement, hosts []Host) []Verdict {
	verdicts := make([]Verdict, len(list))
	for i, r := range list {
		verdicts[i] = Met
		for _, h := range hosts {
			v, _ := r.Expression.Check(h)
			verdicts[i] = min(verdicts[i], v)
		}
	}
	return verdicts
}

// Satisfying returns the alternatives of a satisfied requirement that hold.
func Satisfying(r Requirement, hosts []Host) []string {
	list := []string{}
	for _, h := range hosts {
		if _, g := r.Expression.Check(h); g != nil && !slices.Contains(list, g.String()) {
			list = append(list, g.String())
		}
	}
	return list
}

// Unsatisfied returns the error of a requirement that is not satisfied. It names the first
// alternative, which is the condition proper in the images of CUDA; the others are for drivers with
// forward compatibility.
func Unsatisfied(r Requirement, hosts []Host) error {
	h := hosts[slices.IndexFunc(hosts, func(h Host) bool {
		v, _ := r.Expression.Check(h)
		return v == Unmet
	})]
	_, term := r.Expression[0].Check(h)
	others := ""
	if n := len(r.Expression) - 1; n > 0 {
		others = fmt.Sprintf(" (nor is any of %d alternatives)", n)
	}
	remedy := "update the driver or use another image"
	if term.Property == Arch || term.Property == Brand {
		remedy = "use another GPU or another image"
	}
	return fmt.Errorf("%s: %s is not satisfied%s: this host has %s: %s; or %s",
		r.Variable, request.Quote(r.Expression[0].String()), others, h.describe(r), remedy, Skip)
}

// describe says what is known of the host, as far as a requirement is about it.
func (h Host) describe(r Requirement) string {
	s := "driver " + h.Driver
	if h.CUDA != "" {
		s += ", CUDA " + h.CUDA
	}
	if h.GPU == nil || h.Index < 0 {
		return s
	}
	if r.Expression.Needs(Arch) {
		s += fmt.Sprintf(", GPU %d of arch %s", h.Index, cmp.Or(h.GPU.Arch, "that NVML does not say"))
	}
	if r.Expression.Needs(Brand) {
		s += fmt.Sprintf(", GPU %d of brand %s", h.Index, cmp.Or(h.GPU.Brand, "that NVML does not say"))
	}
	return s
}

// UnknownFact says what is not known although NVML was asked.
func UnknownFact(r Requirement, hosts []Host) string {
	for _, h := range hosts {
		v, g := r.Expression.Check(h)
		if v != Unknown {
			continue
		}
		switch _, term := g.Check(h); {
		case term.Property == CUDA:
			return "NVML does not say which version of CUDA the driver supports"
		case h.GPU != nil:
			return fmt.Sprintf("NVML does not say the %s of GPU %d", term.Property, h.Index)
		}
	}
	return "the driver's version " + request.Quote(hosts[0].Driver) + " is not made of digits and dots"
}
