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

// Resolve finds out what the container gets: GPUs, device nodes, driver files. It
// reads the host and changes nothing but the shim's own cache.
func (j *Job) Resolve() error {
	h := j.Config.Host
	inv, err := device.Discover(device.Roots{Proc: h.ProcRoot, Dev: h.DevRoot, Sys: h.SysRoot})
	if err != nil {
		return fail(Precondition, "%s: %w", j.Request.Reason, err)
	}
	j.inv = inv
	j.Plan.DriverVersion = inv.DriverVersion

	if err := j.selectGPUs(); err != nil {
		return err
	}
	j.Plan.setGPUs(j.gpus)
	if err := j.checkHooks(); err != nil {
		return err
	}
	if j.nodes, err = inv.Nodes(j.gpus, j.Request.Capabilities); err != nil {
		return fail(Precondition, "%w", err)
	}
	j.Plan.setDevices(j.nodes)
	return j.findFiles()
}

// selectGPUs narrows the request to what policy grants.
func (j *Job) selectGPUs() error {
	grant := policy.Decide(j.Config.Policy, j.Container, j.inv.GPUs, j.number)
	j.Plan.Grant = grant.Reason
	if grant.Audit != "" {
		j.Plan.note("enforce would have said: " + grant.Audit)
	}
	all := slices.Equal(j.Request.Devices, []string{request.All})
	if (all || len(j.Request.Devices) == 0) && !grant.All && len(grant.GPUs) == 0 {
		j.Plan.GPU = false
		return ErrNotGranted
	}
	for _, id := range j.Request.Devices {
		gpus, err := j.inv.Select([]string{id})
		if !grant.All && !all && (err != nil || !grantsAll(grant, gpus)) {
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
	return nil
}

func grantsAll(grant policy.Grant, gpus []device.GPU) bool {
	return !slices.ContainsFunc(gpus, func(g device.GPU) bool { return !grant.Allows(g) })
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
