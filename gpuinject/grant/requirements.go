package grant

import (
	"cmp"
	"errors"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host/device"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/request"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/require"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/verdict"
)

// checkRequirements refuses a container if this host and its GPUs do not satisfy the
// requirements of its image. factsErr says why NVML's facts are unknown.
func (g *Grant) checkRequirements(c Container, h host.Host, facts device.Facts, factsErr error) error {
	list, skip, err := requirements(c)
	if skip != "" {
		g.Decide("requirements", "not checked", "%s is true", skip)
		g.Note("requirements of the image are not checked: %s is true", skip)
	}
	if err != nil || len(list) == 0 {
		return err
	}
	known := requirementHost(h, g.GPUs, facts)
	var unknown error
	for _, r := range list {
		switch result, by, err := r.Check(known); result {
		case require.Unmet:
			return verdict.Precondition("%w", err)
		case require.Unknown:
			if factsErr != nil {
				err = factsErr
			} else if fault := faultOf(g.GPUs, facts); fault != "" {
				err = errors.New(fault)
			}
			if unknown == nil {
				unknown = verdict.Precondition("%s=%s cannot be checked: %w: %s", r.Variable, request.Quote(r.Text), err, require.Skip)
			}
		case require.Met:
			g.Requirements = append(g.Requirements, Requirement{Variable: r.Variable, Expression: r.Text, SatisfiedBy: by})
			g.Decide(r.Variable, "satisfied", "by %q", by)
		}
	}
	return unknown
}

// faultOf returns why NVML's answer about one of the GPUs is not complete, or "".
func faultOf(gpus []device.GPU, facts device.Facts) string {
	for _, gpu := range gpus {
		if fault := facts.Fault(gpu); fault != "" {
			return fault
		}
	}
	return ""
}

// requirements returns the requirements of the image that have to be checked. If there are
// requirements but their check is disabled, skip names the setting that disables it.
func requirements(c Container) (list []require.Requirement, skip string, err error) {
	list, err = require.FromEnv(c.Input.Env)
	switch {
	case err == nil && len(list) == 0:
		return nil, "", nil
	case c.Config.Policy.DisableRequire:
		return nil, "policy.disable-require", nil
	case require.Disabled(c.Input.Env):
		return nil, require.EnvDisable, nil
	case err != nil:
		return nil, "", verdict.Invalid("requirements of the image: %w (%s=true skips them)", err, require.EnvDisable)
	}
	return list, "", nil
}

// requirementsNeedFacts reports whether NVML has to be asked in order to check the requirements of
// the image, because the driver's version alone does not decide. If a requirement cannot be
// satisfied, the container is refused whatever NVML answers.
func requirementsNeedFacts(c Container, h host.Host) bool {
	list, _, _ := requirements(c) // checkRequirements returns the error
	known := require.Host{Driver: h.DriverVersion}
	if len(c.Request.Devices) > 0 || c.Input.EditedByCDI {
		known.GPUs = []require.GPU{{}}
	}
	needs := false
	for _, r := range list {
		result, _, _ := r.Check(known)
		if result == require.Unmet {
			return false
		}
		needs = needs || result == require.Unknown
	}
	return needs
}

// requirementHost returns the known properties of the host and of the selected GPUs.
func requirementHost(h host.Host, gpus []device.GPU, facts device.Facts) require.Host {
	known := require.Host{Driver: cmp.Or(h.DriverVersion, facts.Driver), CUDA: facts.CUDA, CUDAOnly: facts.CUDAOnly}
	for _, gpu := range gpus {
		if gpu.BusID == "" && len(facts.GPUs) > 0 { // one device stands for all
			for _, f := range facts.GPUs {
				known.GPUs = append(known.GPUs, require.GPU{Index: f.Index, Arch: f.Arch, Brand: f.Brand})
			}
			continue
		}
		one := require.GPU{Index: gpu.Index}
		for _, f := range facts.GPUs {
			if f.BusID == gpu.BusID {
				one.Arch, one.Brand = f.Arch, f.Brand
			}
		}
		known.GPUs = append(known.GPUs, one)
	}
	return known
}
