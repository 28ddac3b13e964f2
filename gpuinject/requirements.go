package gpuinject

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host/device"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/request"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/require"
)

// PlanRequirement is a requirement of the image that this host fulfils.
type PlanRequirement struct {
	Variable   string `json:"variable"`
	Expression string `json:"expression"`
	// SatisfiedBy are the alternatives that hold, of several GPUs as many as they need;
	// none where the expression is empty.
	SatisfiedBy []string `json:"satisfied_by"`
}

// skipRequirements is how to go on without what an image requires.
const skipRequirements = "set " + require.EnvDisable + "=true in the container, or policy.disable-require in the shim's configuration"

// checkRequirements refuses a container whose image requires what this host does not
// have. NVML is asked only where the driver's version does not decide.
func (j *Job) checkRequirements() error {
	list, err := j.requirements()
	if err != nil || len(list) == 0 {
		return err
	}
	hosts := j.withoutFacts()
	verdicts := checkAll(list, hosts)
	// What cannot be fulfilled is refused whatever NVML would say.
	unknown := slices.IndexFunc(verdicts, func(v require.Verdict) bool { return v == require.Unknown })
	if unknown >= 0 && !slices.Contains(verdicts, require.Unmet) {
		r := list[unknown]
		facts, err := j.facts()
		var refused *Error
		if errors.As(err, &refused) {
			return err
		}
		if err != nil {
			return fail(Precondition, "%s=%s cannot be checked: %w: mend that, or %s", r.Variable, request.Quote(r.Text), err, skipRequirements)
		}
		hosts = j.withFacts(facts)
		verdicts = checkAll(list, hosts)
	}
	if i := slices.Index(verdicts, require.Unmet); i >= 0 {
		return unmet(list[i], hosts)
	}
	for i, r := range list {
		if verdicts[i] == require.Unknown {
			return fail(Precondition, "%s=%s cannot be checked: %s: %s", r.Variable, request.Quote(r.Text), unsaid(r, hosts), skipRequirements)
		}
		by := satisfying(r, hosts)
		j.Plan.Requirements = append(j.Plan.Requirements, PlanRequirement{Variable: r.Variable, Expression: r.Text, SatisfiedBy: by})
		j.explain(r.Variable, "fulfilled", "by %q", by)
	}
	return nil
}

// requirements are those of the image that are to be checked.
func (j *Job) requirements() ([]require.Requirement, error) {
	env := j.bundle.Spec.Process.Env
	list, err := require.FromEnv(env)
	switch {
	case err == nil && len(list) == 0:
		return nil, nil
	case j.Config.Policy.DisableRequire:
		j.explain("requirements", "not checked", "policy.disable-require is true")
		j.Plan.note("requirements of the image are not checked: policy.disable-require is true")
		return nil, nil
	case require.Disabled(env):
		j.explain("requirements", "not checked", "%s is true", require.EnvDisable)
		j.Plan.note("requirements of the image are not checked: " + require.EnvDisable + " is true")
		return nil, nil
	case err != nil:
		return nil, fail(Invalid, "requirements of the image: %w (%s=true skips them)", err, require.EnvDisable)
	}
	return list, nil
}

// requirementHost is what is known of the host and of one selected GPU.
type requirementHost struct {
	require.Host
	// index is the GPU's; -1 where none is selected.
	index int
}

// withoutFacts are the hosts to check on as far as procfs tells: one for all GPUs, of
// which nothing is known.
func (j *Job) withoutFacts() []requirementHost {
	h := requirementHost{Host: require.Host{Driver: j.inv.DriverVersion}, index: -1}
	if len(j.gpus) > 0 {
		h.GPU = &require.GPU{}
	}
	return []requirementHost{h}
}

// withFacts are the hosts to check on: one for each selected GPU, since each must
// fulfil every requirement, or one without a GPU.
func (j *Job) withFacts(facts *device.Facts) []requirementHost {
	h := require.Host{Driver: cmp.Or(j.inv.DriverVersion, facts.Driver), CUDA: facts.CUDA}
	if len(j.gpus) == 0 {
		return []requirementHost{{Host: h, index: -1}}
	}
	var hosts []requirementHost
	for _, gpu := range j.gpus {
		if gpu.BusID == "" && len(facts.GPUs) > 0 { // one that stands for all (WSL2)
			for _, f := range facts.GPUs {
				h.GPU = &require.GPU{Arch: f.Arch, Brand: f.Brand}
				hosts = append(hosts, requirementHost{Host: h, index: f.Index})
			}
			continue
		}
		h.GPU = &require.GPU{}
		if i := slices.IndexFunc(facts.GPUs, func(f device.GPUFacts) bool { return strings.EqualFold(f.BusID, gpu.BusID) }); i >= 0 {
			h.GPU = &require.GPU{Arch: facts.GPUs[i].Arch, Brand: facts.GPUs[i].Brand}
		}
		hosts = append(hosts, requirementHost{Host: h, index: gpu.Index})
	}
	return hosts
}

// checkAll gives each requirement its verdict: the worst of all hosts.
func checkAll(list []require.Requirement, hosts []requirementHost) []require.Verdict {
	verdicts := make([]require.Verdict, len(list))
	for i, r := range list {
		verdicts[i] = require.Met
		for _, h := range hosts {
			v, _ := r.Expression.Check(h.Host)
			verdicts[i] = min(verdicts[i], v)
		}
	}
	return verdicts
}

// satisfying are the alternatives of a fulfilled requirement that hold.
func satisfying(r require.Requirement, hosts []requirementHost) []string {
	list := []string{}
	for _, h := range hosts {
		if _, g := r.Expression.Check(h.Host); g != nil && !slices.Contains(list, g.String()) {
			list = append(list, g.String())
		}
	}
	return list
}

// unmet is the refusal of a requirement that is not fulfilled. It names the first
// alternative, which is the condition proper in the images of CUDA; the others are for
// drivers with forward compatibility.
func unmet(r require.Requirement, hosts []requirementHost) error {
	h := hosts[slices.IndexFunc(hosts, func(h requirementHost) bool {
		v, _ := r.Expression.Check(h.Host)
		return v == require.Unmet
	})]
	_, term := r.Expression[0].Check(h.Host)
	others := ""
	if n := len(r.Expression) - 1; n > 0 {
		others = fmt.Sprintf(" (nor is any of %d alternatives)", n)
	}
	remedy := "update the driver or use another image"
	if term.Property == require.Arch || term.Property == require.Brand {
		remedy = "use another GPU or another image"
	}
	return fail(Precondition, "%s: %s is not fulfilled%s: this host has %s: %s; or %s",
		r.Variable, request.Quote(r.Expression[0].String()), others, h.describe(r), remedy, skipRequirements)
}

// describe says what is known of the host as far as a requirement is about it.
func (h requirementHost) describe(r require.Requirement) string {
	s := "driver " + h.Driver
	if h.CUDA != "" {
		s += ", CUDA " + h.CUDA
	}
	if h.GPU == nil || h.index < 0 {
		return s
	}
	if r.Expression.Needs(require.Arch) {
		s += fmt.Sprintf(", GPU %d of arch %s", h.index, known(h.GPU.Arch))
	}
	if r.Expression.Needs(require.Brand) {
		s += fmt.Sprintf(", GPU %d of brand %s", h.index, known(h.GPU.Brand))
	}
	return s
}

func known(fact string) string {
	if fact == "" {
		return "that NVML does not say"
	}
	return fact
}

// unsaid says what NVML did not say, where it was asked and that is not enough.
func unsaid(r require.Requirement, hosts []requirementHost) string {
	for _, h := range hosts {
		v, g := r.Expression.Check(h.Host)
		if v != require.Unknown {
			continue
		}
		switch _, term := g.Check(h.Host); {
		case term.Property == require.CUDA:
			return "NVML does not say which version of CUDA the driver supports"
		case h.GPU != nil:
			return fmt.Sprintf("NVML does not say the %s of GPU %d", term.Property, h.index)
		}
	}
	return "the driver's version " + request.Quote(hosts[0].Driver) + " is not made of digits and dots"
}
