package gpuinject

import (
	"fmt"
	"slices"
	"strings"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host/device"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/policy"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/request"
)

// mayManage refuses a request for the rights to configure or watch MIG from a
// container that may not have them, and one that goes with MIG devices by name.
func (j *Job) mayManage() error {
	if len(j.Request.MIG) == 0 {
		return nil
	}
	variables := strings.Join(j.Request.MIGVariables(), " and ")
	if may, reason := policy.MayManageMIG(j.Config.Policy, j.Container); !may {
		return fail(Denied, "%s is not for this container: %s", variables, reason)
	}
	if i := slices.IndexFunc(j.Request.Devices, device.IsMIG); i >= 0 {
		return fail(Invalid, "%s is about whole GPUs and the container asks for MIG device %s: ask for one or the other",
			variables, request.Quote(j.Request.Devices[i]))
	}
	return nil
}

// manage adds the rights to configure and to watch MIG, and with them all MIG devices
// of the GPUs that the container sees, as far as it may have them. The GPUs are whole
// to it then.
func (j *Job) manage() error {
	if len(j.Request.MIG) == 0 {
		return nil
	}
	for _, name := range j.Request.MIG {
		c, err := j.inv.Management(name)
		if err != nil {
			return fail(Precondition, "%s: %w", strings.Join(j.Request.MIGVariables(), " and "), err)
		}
		j.set.Manage = append(j.set.Manage, c)
		j.Plan.MIGRights = append(j.Plan.MIGRights, name)
		j.explain("MIG right "+name, "given", "asked for by %s", strings.Join(j.Request.MIGVariables(), " and "))
	}
	for _, gpu := range j.inv.Visible(j.set) {
		instances, err := j.inv.InstancesOf(gpu)
		if err != nil {
			return fail(Precondition, "%w", err)
		}
		withheld, err := j.inv.Withheld(gpu)
		if err != nil {
			return fail(Precondition, "%w", err)
		}
		all := withheld == 0
		for _, in := range instances {
			if j.grant.AllowsMIG(in) {
				j.set.AddMIG(in)
			} else {
				all = false
			}
		}
		if all {
			j.set.AddGPU(gpu)
		}
	}
	return nil
}

// checkWhole refuses a GPU by name that has MIG devices: CUDA sees nothing of such a
// GPU itself, and the container would find out only by itself.
func (j *Job) checkWhole(id string, gpus []device.GPU) error {
	if len(j.Request.MIG) > 0 {
		return nil
	}
	for _, gpu := range gpus {
		instances, err := j.inv.InstancesOf(gpu)
		if err != nil {
			return fail(Precondition, "%w", err)
		}
		if len(instances) > 0 {
			return fail(Invalid, "%s: GPU %s is divided by MIG and of no use by itself: ask for its MIG devices: %s",
				j.Request.Reason, request.Quote(id), j.inv.DescribeMIG(instances, j.keptFacts()))
		}
		withheld, err := j.inv.Withheld(gpu)
		if err != nil {
			return fail(Precondition, "%w", err)
		}
		if withheld > 0 {
			return fail(Invalid, "%s: GPU %s is divided by MIG, and this host, a container itself, was given none of its MIG devices: start it anew with what containers here are to have",
				j.Request.Reason, request.Quote(id))
		}
	}
	return nil
}

// nameMIG enters what NVML calls the MIG devices, where that is known already: the
// request did not need it, the record and the log are clearer with it.
func (j *Job) nameMIG() {
	if !slices.ContainsFunc(j.set.MIG, func(in device.Instance) bool { return in.UUID == "" }) {
		return
	}
	if facts := j.keptFacts(); facts != nil {
		j.inv.Annotate(j.set, facts)
	}
}

func (p *Plan) setMIG(set device.Set) {
	p.MIG = []PlanMIG{}
	for _, in := range set.MIG {
		p.MIG = append(p.MIG, PlanMIG{UUID: in.UUID, GPU: in.GPU, GI: in.GI, CI: in.CI, Name: in.Name(), Profile: in.Profile})
	}
}

// String is one line of what nvidia-shimctl plan prints.
func (m PlanMIG) String() string {
	return fmt.Sprintf("%s, GPU instance %d, compute instance %d of GPU %d", m.Name, m.GI, m.CI, m.GPU)
}
