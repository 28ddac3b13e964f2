package grant

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host/device"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/request"
)

func (g *Grant) decideAllowed() {
	what := cmp.Or(g.May.Set.String(), "none")
	if g.May.All {
		what = "every device of this host"
	}
	g.Decide("grant", what, "%s", g.May.Reason)
}

// decideDevices records what was decided about every device of this host, whether or not the
// request was refused.
func (g *Grant) decideDevices(h host.Host) {
	askedBy := func(has func(device.Set) bool) string {
		var ids []string
		for _, x := range g.choices {
			if id := request.Quote(x.id); x.err == nil && has(x.set) && !slices.Contains(ids, id) {
				ids = append(ids, id)
			}
		}
		if len(ids) == 0 {
			return ""
		}
		return "asked for as " + strings.Join(ids, " and ")
	}
	for _, gpu := range h.GPUs {
		instances, withheld := h.InstancesOf(gpu), h.Withheld(gpu)
		by := askedBy(func(s device.Set) bool { return s.HasGPU(gpu) })
		decision, reason := g.why(by, g.Set.HasGPU(gpu), g.May.Allows(gpu))
		if decision == "not given" && len(instances)+withheld > 0 {
			reason = fmt.Sprintf("partitioned by MIG: its %d MIG devices are given individually", len(instances))
			if len(instances) == 0 {
				reason = "partitioned by MIG, and this host, a container itself, was given none of its MIG devices"
			}
		}
		g.Decide(fmt.Sprintf("GPU %d", gpu.Index), decision, "%s", reason)
		for _, in := range instances {
			by := askedBy(func(s device.Set) bool { return s.HasMIG(in) })
			decision, reason := g.why(by, g.Set.HasMIG(in), g.May.AllowsMIG(in))
			if decision == "given" && by == "" {
				reason = "it belongs to a GPU whose MIG devices the container may configure or watch"
			}
			g.Decide("MIG device "+in.Name(), decision, "%s", reason)
		}
	}
	for _, f := range h.Faulty {
		g.Decide(f.String(), "not given", "it cannot be used: %s", f.Reason)
	}
	for _, f := range h.FaultyMIG {
		g.Decide("MIG device "+f.Instance.Name(), "not given", "it cannot be used: %s", f.Reason)
	}
	for _, gpu := range h.Excluded {
		g.Decide("GPU at "+gpu.BusID, "not given", "excluded from use on this host (NVreg_ExcludedGpus)")
	}
}

// why returns the decision about a device and the reason. by says how the device was asked for; it
// is empty if it was not.
func (g *Grant) why(by string, given, allowed bool) (decision, reason string) {
	switch {
	case given:
		return "given", by
	case by != "" && !allowed:
		return "refused", by + ", and not among the devices that were granted: " + g.May.Reason
	case by != "":
		return "not given", by + "; the request was refused"
	case len(g.Request.Devices) == 0:
		return "not given", "the driver was asked for without a GPU"
	case g.May.Nothing():
		return "not given", "nothing was granted: " + g.May.Reason
	}
	return "not given", "not asked for"
}
