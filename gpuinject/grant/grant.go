package grant

import (
	"errors"
	"slices"
	"strings"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host/device"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/policy"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/question"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/request"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/verdict"
)

// Decide decides which devices of the host the container gets. The grant explains an error.
func Decide(c Container, h host.Host, ask question.Ask) (Grant, error) {
	if c.Input.EditedByCDI {
		return takeOver(c, h, ask)
	}
	g := Grant{Request: c.Request}
	inSpec, err := h.Given(c.Input.Container.Nodes)
	if err != nil {
		return g, verdict.Precondition("%s: %w", c.Request.Reason, err)
	}
	environment := environmentDecides(c, inSpec)
	var named []string
	if environment == "" {
		named = c.Input.TrustedIDs(c.Config)
	} else if slices.Contains(c.Request.Devices, request.All) {
		h = h.WithNodes()
	}
	a := askAll(c, h, environment, !inSpec.Empty() || len(named) > 0, named, ask)
	set, missing, err := selectEach(h, named, a)
	switch {
	// guard: refusals: no list of GPUs
	case err != nil && c.Input.Container.Kubernetes && !errors.Is(err, device.ErrFacts) && !isFault(err):
		// The original error would list the host's GPUs in the pod's events.
		return g, verdict.Denied("GPU %s is not this container's: this host has no such device", request.Quote(missing))
	case err != nil:
		return g, verdict.Precondition("%s: %w", c.Request.Reason, err)
	}
	inSpec.Add(set)
	may, enforced, err := policy.Decide(c.Config.Policy, c.Input.Container, environment, inSpec, a.kubelet)
	if err != nil {
		return g, verdict.Precondition("%s: %w", c.Request.Reason, err)
	}
	// guard: grant: no faulty GPU by its node
	if err := h.GivenFaulty(c.Input.Container.Nodes); err != nil && !may.All {
		return g, verdict.Precondition("%s: %w", c.Request.Reason, err)
	}
	g.May, g.enforced = may, enforced
	g.decideAllowed()
	if n := len(a.passedOver); n > 0 {
		g.Note("%d device ids that the kubelet allocated name no GPU and were passed over, such as %s", n, request.Quote(a.passedOver[0]))
	}
	g.choose(h, c.Request, a)
	if err := g.checkAnnotations(c, h, a); err != nil {
		return g, err
	}
	g.Decide("capabilities", strings.Join(g.Request.Capabilities, ","), "%s", g.Request.CapabilitiesReason)
	if g.Without = g.startsWithout(); g.Without {
		g.decideDevices(h)
		return g, nil
	}
	err = g.selectDevices(c, h, a)
	g.decideDevices(h)
	if err != nil {
		g.Set = device.Set{}
		return g, err
	}
	g.Set.MIG = h.Annotate(g.Set.MIG, a.kept.Facts)
	g.GPUs = h.Visible(g.Set)
	g.audit()
	return g, g.checkRequirements(c, h, a.kept.Facts, a.factsErr)
}

// audit says what policy would have refused if it were enforced.
func (g *Grant) audit() {
	if g.May.All && !g.enforced.All && (g.enforced.Nothing() || !g.enforced.AllowsAll(g.Set)) {
		g.Audit = append(g.Audit, g.enforced.Reason)
	}
}

// StartsWithoutDriver reports whether a container starts without a GPU on a host without a driver:
// nothing can have been allocated to it there, and its image has no right to a GPU.
func StartsWithoutDriver(c Container) bool {
	if !c.Input.Container.Kubernetes {
		return false
	}
	r := c.Request
	if r.Source == request.FromAnnotations {
		other, err := c.Input.WithoutAnnotations(c.Config)
		if err == nil && !other.Driver {
			return true
		}
	}
	return !r.NamesDevices() && r.Source != request.FromCDI && environmentDecides(c, device.Set{}) == ""
}

// environmentDecides returns why the environment of a container whose specification has these devices
// decides what it gets, or "". Outside Kubernetes a user named them there, whereas the environment may
// come from the image, so it adds none.
func environmentDecides(c Container, inSpec device.Set) string {
	p := c.Config.Policy
	if c.Request.Source == request.FromEnvironment && !inSpec.Empty() { // guard: grant: no more than a user's nodes
		p.AcceptEnvWhenUnprivileged = false
	}
	return policy.EnvironmentDecides(p, c.Input.Container)
}

// startsWithout reports whether the container starts without the driver: it no longer asks for it,
// or it asks for whatever is available ("all") and may have nothing. Accepted device-list mounts
// that name no GPU give the driver alone.
func (g *Grant) startsWithout() bool {
	if !g.Request.Driver {
		return true
	}
	driverAlone := g.Request.Source == request.FromMounts && len(g.Request.Devices) == 0
	return g.May.Nothing() && !g.Request.NamesDevices() && !driverAlone
}

// checkAnnotations drops a pod's annotations unless every device that they name was allocated to
// the container. Their author may not have meant this runtime; the container gets what was
// allocated to it as if the annotations did not exist.
func (g *Grant) checkAnnotations(c Container, h host.Host, a answers) error {
	r := g.Request
	if r.Source != request.FromAnnotations || !c.Input.Container.Kubernetes {
		return nil
	}
	allowed := len(r.Devices) == 0 || !g.May.Nothing()
	for _, x := range g.choices {
		if allowed && errors.Is(x.err, device.ErrFacts) {
			// Do not treat it as another container's: it may be the device that was allocated.
			return verdict.Precondition("%s: %w", r.Reason, x.err)
		}
		// guard: grant: annotations within it
		allowed = allowed && x.err == nil && (g.May.AllowsAll(x.set) || x.id == request.All)
	}
	if allowed {
		return nil
	}
	g.Ignore(r.Reason, "not what was allocated to the container: "+g.May.Reason)
	other, err := c.Input.WithoutAnnotations(c.Config)
	if err != nil {
		return RefuseRequest(err)
	}
	if !other.Driver { // the plan keeps the reason of the annotations
		other.Reason, other.Devices, other.Capabilities = r.Reason, r.Devices, r.Capabilities
	}
	g.choose(h, other, a)
	return nil
}

// RefuseRequest turns an error in a request into a refusal.
func RefuseRequest(err error) error {
	if errors.As(err, new(request.DeniedError)) {
		return verdict.Denied("%w", err)
	}
	return verdict.Invalid("%w", err)
}

// selectDevices selects the granted devices among those that the request names.
func (g *Grant) selectDevices(c Container, h host.Host, a answers) error {
	if err := g.mayManageMIG(c); err != nil {
		return err
	}
	for _, x := range g.choices {
		if err := g.checkChoice(h, x, a); err != nil {
			return err
		}
		if err := g.checkAll(c, h, x); err != nil {
			return err
		}
		for _, gpu := range x.set.GPUs {
			if g.May.Allows(gpu) { // guard: grant: all GPUs
				g.Set.AddGPU(gpu)
			}
		}
		for _, in := range x.set.MIG {
			if g.May.AllowsMIG(in) { // guard: grant: MIG devices
				g.Set.AddMIG(in)
			}
		}
	}
	return g.addMIGRights(h)
}

// checkChoice refuses an id that names no device, or a device that the container may not have.
func (g *Grant) checkChoice(h host.Host, x choice, a answers) error {
	reason, named := g.Request.Reason, g.Request.NamesDevices()
	if errors.Is(x.err, device.ErrFacts) {
		return verdict.Precondition("%s: %w", reason, x.err)
	}
	if !g.May.All && named && (g.May.Nothing() || x.err != nil || !g.May.AllowsAll(x.set)) { // guard: grant: named GPUs
		// Use the same message for another container's GPU and for one that does not exist, so that
		// a pod learns nothing about its neighbours.
		return verdict.Denied("GPU %s is not this container's: %s", request.Quote(x.id), g.May.Reason)
	}
	if isFault(x.err) {
		return verdict.Precondition("%s: %w", reason, x.err)
	}
	if x.err != nil {
		return verdict.Invalid("%s: %w", reason, x.err)
	}
	if !named || len(g.Request.MIGRights) > 0 {
		return nil
	}
	// CUDA cannot use a GPU that has MIG devices as a whole, and the container would fail only at
	// run time.
	for _, gpu := range x.set.GPUs {
		if instances := h.InstancesOf(gpu); len(instances) > 0 {
			return verdict.Invalid("%s: GPU %s is partitioned by MIG and cannot be used as a whole: ask for its MIG devices: %s",
				reason, request.Quote(x.id), device.DescribeMIG(h.Annotate(instances, a.kept.Facts)))
		}
		if h.Withheld(gpu) > 0 {
			return verdict.Invalid("%s: GPU %s is partitioned by MIG, and this host, a container itself, was given none of its MIG devices: start it again with the MIG devices that containers here are to have",
				reason, request.Quote(x.id))
		}
		if fault := h.FaultOf(gpu); fault != "" {
			return verdict.Precondition("%s: GPU %s is partitioned by MIG, and its MIG devices cannot be used: %s", reason, request.Quote(x.id), fault)
		}
	}
	return nil
}

// checkAll refuses "all" on a host with a faulty device, or says which devices are left out.
func (g *Grant) checkAll(c Container, h host.Host, x choice) error {
	if x.id != request.All || !g.May.All {
		return nil
	}
	for _, f := range h.Faults() {
		if c.Config.Policy.FaultyGPUs == config.Refuse {
			return verdict.Precondition("%s: \"all\" includes %w; name other devices, or set policy.faulty-gpus = %q", g.Request.Reason, f, config.LeaveOut)
		}
		g.Warn("\"all\" leaves out %v", f)
	}
	return nil
}

// mayManageMIG refuses a request for the rights to configure or monitor MIG if the container may
// not have them, or if it names MIG devices as well.
func (g *Grant) mayManageMIG(c Container) error {
	if len(g.Request.MIGRights) == 0 {
		return nil
	}
	variables := strings.Join(g.Request.MIGVariables, " and ")
	// guard: grant: MIG rights refused
	if may, missing := policy.MayManageMIG(c.Config.Policy, c.Input.Container); !may {
		return verdict.Denied("%s is not for this container: %s", variables, missing)
	}
	for _, id := range g.Request.Devices {
		if device.IsMIG(id) {
			return verdict.Invalid("%s applies to whole GPUs, but the container asks for MIG device %s: ask for one or the other",
				variables, request.Quote(id))
		}
	}
	return nil
}

// addMIGRights adds the requested rights to configure and to monitor MIG and, with them, the MIG
// devices of the container's GPUs that it may have. A GPU of which the container gets every MIG
// device counts as a whole GPU.
func (g *Grant) addMIGRights(h host.Host) error {
	if len(g.Request.MIGRights) == 0 {
		return nil
	}
	variables := strings.Join(g.Request.MIGVariables, " and ")
	for _, name := range g.Request.MIGRights {
		right, err := h.Management(name)
		if err != nil {
			return verdict.Precondition("%s: %w", variables, err)
		}
		g.Set.Manage = append(g.Set.Manage, right)
		g.MIGRights = append(g.MIGRights, name)
		g.Decide("MIG right "+name, "given", "asked for by %s", variables)
	}
	for _, gpu := range h.Visible(g.Set) {
		all := h.Withheld(gpu) == 0 && h.FaultOf(gpu) == ""
		for _, in := range h.InstancesOf(gpu) {
			if g.May.AllowsMIG(in) {
				g.Set.AddMIG(in)
			} else {
				all = false
			}
		}
		if all {
			g.Set.AddGPU(gpu)
		}
	}
	return nil
}
