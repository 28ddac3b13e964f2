package gpuinject

import (
	"errors"
	"slices"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host/device"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/policy"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/request"
)

// ErrNotGranted is returned by Resolve where the container gets nothing and starts
// all the same: its image asked for every GPU, or for the driver alone, and nobody
// gave it one. The plan says why.
var ErrNotGranted = errors.New("nothing was granted")

// Resolve finds out what the container gets: GPUs, device nodes of theirs and of other
// classes, driver files. It
// reads the host and changes nothing but the shim's own cache.
func (j *Job) Resolve() error {
	j.explainRequest()
	if j.Request.ForeignOnly {
		return j.resolveForeign()
	}
	h := j.Config.Host
	if len(j.Request.Devices) != 1 || !j.namesDevices() {
		// With one device there is too little to do meanwhile to wake up a thread.
		j.readEarly()
		defer j.early.wait()
	}
	inv, confirm, err := j.ahead.gpus(Roots(h))
	if errors.Is(err, device.ErrNoDriver) && !j.namesDevices() && j.Container.Kubernetes &&
		!policy.EnvironmentGrants(j.Config.Policy, j.Container) {
		// Nothing can have been allocated here, and the image's wish is no grant.
		return j.notGranted("no GPU can have been allocated: " + err.Error())
	}
	if errors.Is(err, device.ErrNoDriver) && j.otherwise != nil && j.otherwiseErr == nil && !j.otherwise.Driver {
		return j.notGranted("no GPU can have been allocated: " + err.Error())
	}
	if err != nil {
		return fail(Precondition, "%s: %w", j.Request.Reason, err)
	}
	j.inv, j.confirm = inv, confirm
	j.Plan.DriverVersion, j.Plan.Platform = inv.DriverVersion, inv.Platform
	j.withinContainer()

	if err := j.selectDevices(); err != nil {
		return err
	}
	j.Plan.setGPUs(j.set.GPUs)
	j.Plan.setMIG(j.set)
	if err := j.checkRequirements(); err != nil {
		return err
	}
	if err := j.checkHooks(); err != nil {
		return err
	}
	if err := j.findNodes(); err != nil {
		return err
	}
	if err := j.addOthers(); err != nil {
		return err
	}
	j.Plan.setDevices(j.nodes)
	if err := j.findFiles(); err != nil {
		return err
	}
	j.addClassFiles()
	j.ignoreMemoryLimit()
	j.findSockets()
	return j.findForeign()
}

// namesDevices tells a request for particular GPUs from one for all of them, or for
// the driver without one.
func (j *Job) namesDevices() bool {
	return len(j.Request.Devices) > 0 && !slices.Equal(j.Request.Devices, []string{request.All})
}

// notGranted ends with a container that starts without a GPU.
func (j *Job) notGranted(reason string) error {
	j.Plan.GPU, j.Plan.Grant = false, reason
	return ErrNotGranted
}

// selectDevices narrows the request to what policy grants.
func (j *Job) selectDevices() error {
	if j.taken {
		return j.takeOver()
	}
	grant, err := policy.Decide(j.Config.Policy, j.Container, policy.Host{
		Given: j.inv.Given, Select: j.find,
		Mounted: j.granted,
		Kubelet: func() (policy.Allocation, error) {
			if j.AskKubelet == nil {
				return policy.Allocation{}, errors.New("nobody is there to ask it")
			}
			return j.AskKubelet(j.Config.Policy.KubeletSocket, j.Container.Namespace, j.Container.Pod)
		},
	})
	if err != nil {
		return fail(Precondition, "%s: %w", j.Request.Reason, err)
	}
	j.Plan.Grant, j.grant = grant.Reason, grant
	j.explainGrant()
	if err := j.checkAnnotations(); err != nil {
		return err
	}
	defer j.explainDevices()
	if !j.namesDevices() && grant.Nothing() {
		return j.notGranted(grant.Reason)
	}
	if err := j.mayManage(); err != nil {
		return err
	}
	for _, id := range j.Request.Devices {
		if err := j.selectDevice(id); err != nil {
			return err
		}
	}
	if err := j.manage(); err != nil {
		return err
	}
	j.nameMIG()
	j.gpus = j.inv.Visible(j.set)
	if e := grant.Enforced; e != nil && (e.Nothing() || !e.AllowsAll(j.set)) {
		j.audit(e.Reason)
	}
	return nil
}

// selectDevice adds what id names, as far as it is granted.
func (j *Job) selectDevice(id string) error {
	var set device.Set
	var err error
	// Nobody has to be asked what an id means of which nothing can be granted.
	named, nothing := j.namesDevices(), j.grant.Nothing()
	if !nothing {
		set, err = j.find([]string{id})
		j.remember(id, set)
	}
	if errors.Is(err, device.ErrFacts) {
		return fail(Precondition, "%s: %w", j.Request.Reason, err)
	}
	if !j.grant.All && named && (nothing || err != nil || !j.grant.AllowsAll(set)) {
		// The same words for a GPU that is somebody else's and for one that does
		// not exist: a pod learns nothing of its neighbours.
		return fail(Denied, "GPU %s is not this container's: %s", request.Quote(id), j.grant.Reason)
	}
	if err != nil {
		return fail(Invalid, "%s: %w", j.Request.Reason, err)
	}
	if named {
		if err := j.checkWhole(id, set.GPUs); err != nil {
			return err
		}
	}
	for _, gpu := range set.GPUs {
		if j.grant.Allows(gpu) {
			j.set.AddGPU(gpu)
		}
	}
	for _, in := range set.MIG {
		if j.grant.AllowsMIG(in) {
			j.set.AddMIG(in)
		}
	}
	return nil
}

// find turns device ids into devices.
func (j *Job) find(ids []string) (device.Set, error) { return j.inv.Select(ids, j.askFacts) }
