package gpuinject

import (
	"cmp"
	"slices"
	"strings"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host/device"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/request"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/require"
)

// PlanRequirement is a requirement of the image that this host satisfies.
type PlanRequirement struct {
	Variable   string `json:"variable"`
	Expression string `json:"expression"`
	// SatisfiedBy are the alternatives that hold, of several GPUs as many as they need; none if the
	// expression is empty.
	SatisfiedBy []string `json:"satisfied_by"`
}

// checkRequirements refuses a container whose image requires what this host does not have.
func checkRequirements(c Container, h host.Host, g grant, a answers, p *Plan) error {
	list, err := requirements(c, p)
	if err != nil || len(list) == 0 {
		return err
	}
	hosts := requirementHosts(h, g.gpus, a.kept.Facts)
	verdicts := require.CheckAll(list, hosts)
	if i := slices.Index(verdicts, require.Unmet); i >= 0 {
		return fail(Precondition, "%w", require.Unsatisfied(list[i], hosts))
	}
	for i, r := range list {
		if verdicts[i] == require.Unknown && a.factsErr != nil {
			return fail(Precondition, "%s=%s cannot be checked: %w: fix that, or %s", r.Variable, request.Quote(r.Text), a.factsErr, require.Skip)
		}
		if verdicts[i] == require.Unknown {
			return fail(Precondition, "%s=%s cannot be checked: %s: %s", r.Variable, request.Quote(r.Text), require.UnknownFact(r, hosts), require.Skip)
		}
		by := require.Satisfying(r, hosts)
		p.Requirements = append(p.Requirements, PlanRequirement{Variable: r.Variable, Expression: r.Text, SatisfiedBy: by})
		p.decide(r.Variable, "satisfied", "by %q", by)
	}
	return nil
}

// requirements returns those of the image that are to be checked.
func requirements(c Container, p *Plan) ([]require.Requirement, error) {
	list, err := require.FromEnv(c.Said.Env)
	switch {
	case err == nil && len(list) == 0:
		return nil, nil
	case c.Config.Policy.DisableRequire:
		p.decide("requirements", "not checked", "policy.disable-require is true")
		p.note("requirements of the image are not checked: policy.disable-require is true")
		return nil, nil
	case require.Disabled(c.Said.Env):
		p.decide("requirements", "not checked", "%s is true", require.EnvDisable)
		p.note("requirements of the image are not checked: %s is true", require.EnvDisable)
		return nil, nil
	case err != nil:
		return nil, fail(Invalid, "requirements of the image: %w (%s=true skips them)", err, require.EnvDisable)
	}
	return list, nil
}

// requirementsNeedFacts reports whether NVML has to be asked whether this host satisfies the
// requirements of the image: the driver's version does not decide. What cannot be satisfied is
// refused whatever NVML would say.
func requirementsNeedFacts(c Container, h host.Host) bool {
	list, err := requirements(c, &Plan{})
	if err != nil {
		return false
	}
	known := require.Host{Driver: h.DriverVersion, Index: -1}
	if len(c.Request.Devices) > 0 || c.Said.EditedByCDI {
		known.GPU = &require.GPU{}
	}
	verdicts := require.CheckAll(list, []require.Host{known})
	return slices.Contains(verdicts, require.Unknown) && !slices.Contains(verdicts, require.Unmet)
}

// requirementHosts are the hosts to check on: one for each selected GPU, since each must satisfy
// every requirement, or one without a GPU.
func requirementHosts(h host.Host, gpus []device.GPU, facts device.Facts) []require.Host {
	known := require.Host{Driver: cmp.Or(h.DriverVersion, facts.Driver), CUDA: facts.CUDA, Index: -1}
	if len(gpus) == 0 {
		return []require.Host{known}
	}
	var hosts []require.Host
	for _, gpu := range gpus {
		if gpu.BusID == "" && len(facts.GPUs) > 0 { // one device that stands for all
			for _, f := range facts.GPUs {
				known.GPU = &require.GPU{Arch: f.Arch, Brand: f.Brand}
				known.Index = f.Index
				hosts = append(hosts, known)
			}
			continue
		}
		known.GPU = &require.GPU{}
		for _, f := range facts.GPUs {
			if strings.EqualFold(f.BusID, gpu.BusID) {
				known.GPU = &require.GPU{Arch: f.Arch, Brand: f.Brand}
			}
		}
		known.Index = gpu.Index
		hosts = append(hosts, known)
	}
	return hosts
}
