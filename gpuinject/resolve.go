package gpuinject

import (
	"errors"
	"slices"
	"strings"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/device"
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
	h := j.Config.Host
	inv, err := device.Discover(device.Roots{Proc: h.ProcRoot, Dev: h.DevRoot, Sys: h.SysRoot})
	if errors.Is(err, device.ErrNoDriver) && !j.namesDevices() && j.Container.Kubernetes &&
		!policy.EnvironmentGrants(j.Config.Policy, j.Container) {
		// Nothing can have been allocated here, and the image's wish is no grant.
		return j.notGranted("no GPU can have been allocated: " + err.Error())
	}
	if err != nil {
		return fail(Precondition, "%s: %w", j.Request.Reason, err)
	}
	j.inv = inv
	j.Plan.DriverVersion = inv.DriverVersion

	if err := j.selectGPUs(); err != nil {
		return err
	}
	j.Plan.setGPUs(j.gpus)
	if err := j.checkRequirements(); err != nil {
		return err
	}
	if err := j.checkHooks(); err != nil {
		return err
	}
	if j.nodes, err = inv.Nodes(j.gpus, j.Request.Capabilities); err != nil {
		return fail(Precondition, "%w", err)
	}
	if err := j.addOthers(); err != nil {
		return err
	}
	j.Plan.setDevices(j.nodes)
	if err := j.findFiles(); err != nil {
		return err
	}
	j.addClassFiles()
	return nil
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

// selectGPUs narrows the request to what policy grants.
func (j *Job) selectGPUs() error {
	grant, err := policy.Decide(j.Config.Policy, j.Container, policy.Host{
		GPUs: j.inv.GPUs, Node: j.number, Select: j.inv.Select,
		Mounted: j.mounted(),
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
	if !j.namesDevices() && grant.Nothing() {
		return j.notGranted(grant.Reason)
	}
	for _, id := range j.Request.Devices {
		gpus, err := j.inv.Select([]string{id})
		if !grant.All && j.namesDevices() && (err != nil || !grant.AllowsAll(gpus)) {
			// The same words for a GPU that is somebody else's and for one that does
			// not exist: a pod learns nothing of its neighbours.
			return fail(Denied, "GPU %s is not this container's: %s", request.Quote(id), grant.Reason)
		}
		if err != nil {
			return fail(Invalid, "%s: %w", j.Request.Reason, err)
		}
		for _, gpu := range gpus {
			if grant.Allows(gpu) && !slices.Contains(j.gpus, gpu) {
				j.gpus = append(j.gpus, gpu)
			}
		}
	}
	slices.SortFunc(j.gpus, func(a, b device.GPU) int { return a.Index - b.Index })
	if e := grant.Enforced; e != nil && (e.Nothing() || !e.AllowsAll(j.gpus)) {
		j.audit(e.Reason)
	}
	return nil
}

// mounted are the identifiers of the device-list mounts, which are a grant.
func (j *Job) mounted() []string {
	if j.Request.Mounted {
		return j.Request.Devices
	}
	return nil
}

// number is the device number of a GPU's node.
func (j *Job) number(gpu device.GPU) policy.Number {
	nodes, err := j.inv.Nodes([]device.GPU{gpu}, nil)
	if err != nil {
		return policy.Number{Major: -1, Minor: -1}
	}
	for _, n := range nodes {
		if strings.HasPrefix(n.Path, "/dev/nvidia") && n.Path != "/dev/nvidiactl" {
			return policy.Number{Major: int64(n.Major), Minor: int64(n.Minor)}
		}
	}
	return policy.Number{Major: -1, Minor: -1}
}
