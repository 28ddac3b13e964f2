package gpuinject

import (
	"errors"
	"strings"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host/device"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/policy"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/request"
)

// grant is what a container may have of the host's devices, and what it gets.
type grant struct {
	// may is what it may select from; enforced is what the mode "enforce" would let it select from.
	may, enforced policy.Grant
	// request is what it asks for: without annotations that name what it may not have.
	request request.Request
	// set are the devices that it gets.
	set device.Set
	// gpus are those that it sees: whole ones and those of its MIG devices.
	gpus []device.GPU
}

// grantDevices decides which devices the container gets. If p.GPU is false afterwards, it gets
// nothing and starts without.
func grantDevices(c Container, h host.Host, ask Ask, p *Plan) (grant, error) {
	if c.Said.EditedByCDI {
		return takeOver(c, h, ask, p)
	}
	var named []string
	if policy.EnvironmentGrants(c.Config.Policy, c.Said.Container) == "" {
		named = c.Said.Granted(c.Config)
	}
	inSpec, err := h.Given(c.Said.Container.Nodes)
	if err != nil {
		return grant{}, fail(Precondition, "%s: %w", c.Request.Reason, err)
	}
	a := askAll(c, h, inSpec.Empty() && len(named) == 0, named, ask)
	if len(named) > 0 {
		set, err := selectIDs(h, named, a)
		if err != nil {
			return grant{}, fail(Precondition, "%s: %w", c.Request.Reason, err)
		}
		inSpec.Add(set)
	}
	g := grant{request: c.Request}
	if g.may, g.enforced, err = policy.Decide(c.Config.Policy, c.Said.Container, inSpec, a.kubelet); err != nil {
		return g, fail(Precondition, "%s: %w", c.Request.Reason, err)
	}
	p.Grant = g.may.Reason
	p.decideGrant(g.may)
	if g.request, err = checkAnnotations(c, h, g.may, a, p); err != nil {
		return g, err
	}
	p.Asked, p.Capabilities, p.Reason = g.request.Devices, g.request.Capabilities, g.request.Reason
	p.decide("capabilities", strings.Join(p.Capabilities, ","), "%s", g.request.CapabilitiesReason)
	// Accepted device-list mounts that name no GPU grant the driver by itself.
	mounted := g.request.Source == request.FromMounts && len(g.request.Devices) == 0
	if !g.request.Driver || !g.request.NamesDevices() && g.may.Nothing() && !mounted {
		p.decideDevices(h, g, a)
		p.notGranted(g.may.Reason)
		return g, nil
	}
	g.set, err = selectDevices(c, h, g, a, p)
	p.decideDevices(h, g, a)
	if err != nil {
		return g, err
	}
	g.set.MIG = h.Annotate(g.set.MIG, a.kept.Facts)
	g.gpus = h.Visible(g.set)
	p.setDevices(g.set)
	if g.may.All && !g.enforced.All && (g.enforced.Nothing() || !g.enforced.AllowsAll(g.set)) {
		p.audit(g.enforced.Reason)
	}
	return g, checkRequirements(c, h, g, a, p)
}

// checkAnnotations returns the request without a pod's annotations if they name what was not all
// allocated to the container: their author may not have meant this runtime, and what was allocated
// is given as if they were not there.
func checkAnnotations(c Container, h host.Host, may policy.Grant, a answers, p *Plan) (request.Request, error) {
	r := c.Request
	if r.Source != request.FromAnnotations || !c.Said.Container.Kubernetes {
		return r, nil
	}
	allowed := len(r.Devices) == 0 || !may.Nothing()
	for _, id := range r.Devices {
		if !allowed {
			break
		}
		set, err := selectIDs(h, []string{id}, a)
		if errors.Is(err, device.ErrFacts) {
			// Not to be taken for another's: it may be the very device that was allocated.
			return r, fail(Precondition, "%s: %w", r.Reason, err)
		}
		allowed = err == nil && (may.AllowsAll(set) || id == request.All)
	}
	if allowed {
		return r, nil
	}
	p.ignore(r.Reason, "not what was allocated to the container: "+may.Reason)
	other, err := c.Said.WithoutAnnotations(c.Config)
	if err != nil {
		return r, refuseRequest(err)
	}
	if !other.Driver { // the reason of the plan stays that of the annotations
		other.Reason, other.Devices, other.Capabilities = r.Reason, r.Devices, r.Capabilities
	}
	return other, nil
}

// selectDevices selects the devices that the request names, as far as they are granted.
func selectDevices(c Container, h host.Host, g grant, a answers, p *Plan) (device.Set, error) {
	var set device.Set
	if err := mayManageMIG(c, g); err != nil {
		return set, err
	}
	for _, id := range g.request.Devices {
		asked, err := selectDevice(h, g, id, a)
		if err != nil {
			return set, err
		}
		for _, gpu := range asked.GPUs {
			if g.may.Allows(gpu) {
				set.AddGPU(gpu)
			}
		}
		for _, in := range asked.MIG {
			if g.may.AllowsMIG(in) {
				set.AddMIG(in)
			}
		}
	}
	return addMIGRights(h, g, set, p)
}

// selectDevice returns what id names, granted or not if all devices are asked for.
func selectDevice(h host.Host, g grant, id string, a answers) (device.Set, error) {
	var set device.Set
	var err error
	// An id of which nothing can be granted need not be understood.
	named, nothing := g.request.NamesDevices(), g.may.Nothing()
	if !nothing {
		set, err = selectIDs(h, []string{id}, a)
	}
	if errors.Is(err, device.ErrFacts) {
		return set, fail(Precondition, "%s: %w", g.request.Reason, err)
	}
	if !g.may.All && named && (nothing || err != nil || !g.may.AllowsAll(set)) {
		// The same words for another container's GPU and for one that does not exist: a pod learns
		// nothing of its neighbours.
		return set, fail(Denied, "GPU %s is not this container's: %s", request.Quote(id), g.may.Reason)
	}
	if err != nil {
		return set, fail(Invalid, "%s: %w", g.request.Reason, err)
	}
	if named && len(g.request.MIGRights) == 0 {
		return set, checkNotPartitioned(h, g, id, set.GPUs, a)
	}
	return set, nil
}

// checkNotPartitioned refuses a GPU by name that has MIG devices: CUDA sees nothing of such a GPU
// itself, and the container would find out only at run time.
func checkNotPartitioned(h host.Host, g grant, id string, gpus []device.GPU, a answers) error {
	for _, gpu := range gpus {
		if instances := h.InstancesOf(gpu); len(instances) > 0 {
			return fail(Invalid, "%s: GPU %s is partitioned by MIG and of no use by itself: ask for its MIG devices: %s",
				g.request.Reason, request.Quote(id), device.DescribeMIG(h.Annotate(instances, a.kept.Facts)))
		}
		if h.Withheld(gpu) > 0 {
			return fail(Invalid, "%s: GPU %s is partitioned by MIG, and this host, a container itself, was given none of its MIG devices: start it again with the MIG devices that containers here are to have",
				g.request.Reason, request.Quote(id))
		}
	}
	return nil
}

// mayManageMIG refuses a request for the rights to configure or watch MIG from a container that may
// not have them, and one that goes with MIG devices by name.
func mayManageMIG(c Container, g grant) error {
	if len(g.request.MIGRights) == 0 {
		return nil
	}
	variables := strings.Join(g.request.MIGVariables, " and ")
	if may, missing := policy.MayManageMIG(c.Config.Policy, c.Said.Container); !may {
		return fail(Denied, "%s is not for this container: %s", variables, missing)
	}
	for _, id := range g.request.Devices {
		if device.IsMIG(id) {
			return fail(Invalid, "%s is about whole GPUs and the container asks for MIG device %s: ask for one or the other",
				variables, request.Quote(id))
		}
	}
	return nil
}

// addMIGRights adds the rights to configure and to watch MIG, and with them all MIG devices of the
// GPUs that the container sees, as far as it may have them. The GPUs are whole to it then.
func addMIGRights(h host.Host, g grant, set device.Set, p *Plan) (device.Set, error) {
	if len(g.request.MIGRights) == 0 {
		return set, nil
	}
	variables := strings.Join(g.request.MIGVariables, " and ")
	for _, name := range g.request.MIGRights {
		right, err := h.Management(name)
		if err != nil {
			return set, fail(Precondition, "%s: %w", variables, err)
		}
		set.Manage = append(set.Manage, right)
		p.MIGRights = append(p.MIGRights, name)
		p.decide("MIG right "+name, "given", "asked for by %s", variables)
	}
	for _, gpu := range h.Visible(set) {
		all := h.Withheld(gpu) == 0
		for _, in := range h.InstancesOf(gpu) {
			if g.may.AllowsMIG(in) {
				set.AddMIG(in)
			} else {
				all = false
			}
		}
		if all {
			set.AddGPU(gpu)
		}
	}
	return set, nil
}
