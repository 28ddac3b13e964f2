package gpuinject

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/bundle"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host/device"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/request"
)

// Decision is one decision of the shim about a container, for the operator.
type Decision struct {
	// Subject is what it is about: "GPU 2", "capabilities", "gds".
	Subject string `json:"subject"`
	// Decision is what was decided: "given", "refused", "not given".
	Decision string `json:"decision"`
	Reason   string `json:"reason"`
}

// explain enters a decision in the plan, where somebody wants to read it: it tells of
// every device of the host, so that it is nothing for a container's errors.
func (j *Job) explain(subject, decision, format string, args ...any) {
	if j.Explain {
		j.Plan.Decisions = append(j.Plan.Decisions, Decision{Subject: subject, Decision: decision, Reason: fmt.Sprintf(format, args...)})
	}
}

// leftAlone says why a container is none of the shim's business.
type leftAlone string

func (l leftAlone) Error() string { return string(l) }

// ordinary is an error without leftAlone, which is none.
func ordinary(err error) error {
	if alone := leftAlone(""); errors.As(err, &alone) {
		return nil
	}
	return err
}

// WhyLeftAlone says why Examine and ExamineSpec return no job for the configuration
// raw, by asking once more; empty where they do.
func WhyLeftAlone(raw []byte, load func() (*config.Config, error)) string {
	b, err := bundle.Parse("", raw, 0o600)
	if err != nil {
		return ""
	}
	_, err = examine(b, load)
	alone := leftAlone("")
	_ = errors.As(err, &alone)
	return string(alone)
}

// explainRequest enters what made the container one that gets the driver.
func (j *Job) explainRequest() {
	if !j.Explain {
		return
	}
	what := "asks for the driver"
	if j.Request.ForeignOnly {
		what = "asks for other vendors' devices"
	}
	j.explain("container", what, "%s", j.Request.Reason)
	j.explainOverridden()
	if j.Request.ForeignOnly {
		return
	}
	j.explain("capabilities", strings.Join(j.Request.Capabilities, ","), "%s", j.Request.CapabilitiesReason)
}

// explainOverridden enters the ways to ask that the container uses and that do not
// count beside another.
func (j *Job) explainOverridden() {
	winner := ""
	switch {
	case j.taken:
		winner = "what CDI put into the specification goes before it"
	case j.Request.Annotated:
		winner = "annotations go before it"
	case j.Request.Mounted:
		winner = "device-list mounts go before it"
	}
	list, err := request.DeviceList(j.bundle.Spec.Mounts)
	if mounts := err == nil && !list.Empty(); mounts && !j.Config.Policy.AcceptVolumeMounts {
		j.explain("device-list mounts", "not followed", "policy.accept-volume-mounts is false")
	} else if mounts && !j.Request.Mounted && winner != "" {
		j.explain("device-list mounts", "not followed", "%s", winner)
	}
	env := j.bundle.Spec.Process.Env
	switch asks := request.Wants(env); {
	case winner != "" && asks:
		j.explain(request.EnvVisibleDevices, "not followed", "%s", winner)
	case winner == "" && !j.Container.Kubernetes && request.HasSwarm(env) && len(request.WithSwarm(env, j.Config.Policy.SwarmResources)) != len(env):
		j.explain("swarm's resources", "followed", "policy.swarm-resources has them, and they go before %s", request.EnvVisibleDevices)
	}
}

// explainGrant enters what the container may have.
func (j *Job) explainGrant() {
	if !j.Explain {
		return
	}
	what := "none"
	switch {
	case j.grant.All:
		what = "every device of this host"
	case !j.grant.Nothing():
		what = strings.Join(j.grant.Set.Names(), ",")
	}
	j.explain("grant", what, "%s", j.grant.Reason)
}

// meaning is an identifier and what it was found to mean.
type meaning struct {
	id  string
	set device.Set
}

// explainDevices enters what was decided about every device of this host. It runs
// whatever became of the request.
func (j *Job) explainDevices() {
	if !j.Explain {
		return
	}
	// A refusal ends the selection at the first identifier.
	for _, id := range j.Request.Devices {
		if set, err := j.find([]string{id}); err == nil && !j.grant.Nothing() {
			j.remember(id, set)
		}
	}
	for _, gpu := range j.inv.GPUs {
		subject := fmt.Sprintf("GPU %d", gpu.Index)
		instances, err := j.inv.InstancesOf(gpu)
		if err != nil {
			j.explain(subject, "not given", "its MIG devices are not known: %v", err)
			continue
		}
		withheld, err := j.inv.Withheld(gpu)
		if err != nil {
			j.explain(subject, "not given", "its MIG devices are not known: %v", err)
			continue
		}
		divided := fmt.Sprintf("divided by MIG: its %d MIG devices are given by themselves", len(instances))
		if len(instances) == 0 {
			divided = "divided by MIG, and this host, a container itself, was given none of its MIG devices"
		}
		switch by := j.askedBy(func(s device.Set) bool { return s.HasGPU(gpu) }); {
		case j.set.HasGPU(gpu):
			j.explain(subject, "given", "%s", by)
		case by != "" && !j.grant.Allows(gpu):
			j.explain(subject, "refused", "%s, and not among the devices that were granted: %s", by, j.grant.Reason)
		case len(instances)+withheld > 0:
			j.explain(subject, "not given", "%s", divided)
		case by != "":
			// It may be had, and something else is wrong.
			j.explain(subject, "not given", "%s; the request was refused", by)
		default:
			j.explain(subject, "not given", "%s", j.whyNotAsked())
		}
		for _, in := range instances {
			j.explainMIG(in)
		}
	}
	for _, gpu := range j.inv.Excluded {
		j.explain("GPU at "+gpu.BusID, "not given", "excluded from use on this host (NVreg_ExcludedGpus)")
	}
}

func (j *Job) explainMIG(in device.Instance) {
	subject := "MIG device " + in.Name()
	switch by := j.askedBy(func(s device.Set) bool { return s.HasMIG(in) }); {
	case j.set.HasMIG(in) && by == "":
		j.explain(subject, "given", "it belongs to a GPU whose MIG devices the container may configure or watch")
	case j.set.HasMIG(in):
		j.explain(subject, "given", "%s", by)
	case by != "" && !j.grant.AllowsMIG(in):
		j.explain(subject, "refused", "%s, and not among the devices that were granted: %s", by, j.grant.Reason)
	case by != "":
		j.explain(subject, "not given", "%s; the request was refused", by)
	default:
		j.explain(subject, "not given", "%s", j.whyNotAsked())
	}
}

// askedBy says by which identifiers a device was asked for; empty where it was not.
func (j *Job) askedBy(has func(device.Set) bool) string {
	var ids []string
	for _, a := range j.meanings {
		if has(a.set) {
			ids = append(ids, request.Quote(a.id))
		}
	}
	if len(ids) == 0 {
		return ""
	}
	return "asked for as " + strings.Join(ids, " and ")
}

// whyNotAsked is the reason of a device that nothing in the request means.
func (j *Job) whyNotAsked() string {
	switch {
	case len(j.Request.Devices) == 0:
		return "the driver was asked for without a GPU"
	case j.grant.Nothing():
		return "nothing was granted: " + j.grant.Reason
	}
	return "not asked for"
}

// explainHooks enters which OCI hooks of the specification are taken out.
func (j *Job) explainHooks() {
	hooks := j.bundle.Spec.Hooks
	if !j.Explain || hooks == nil {
		return
	}
	for _, h := range allHooks(hooks) {
		if subject := "hook " + request.Quote(h.Path); isForeignHook(h) {
			j.explain(subject, "removed", "it is NVIDIA's and would inject the same devices again")
		} else {
			j.explain(subject, "kept", "it is not one of NVIDIA's")
		}
	}
}

// explainMask enters whether /proc/driver/nvidia is masked.
func (j *Job) explainMask() {
	switch {
	case !j.Explain:
	case j.Plan.Proc.Masked:
		j.explain("/proc/driver/nvidia", "masked", "the container shall see its own devices only")
	case j.Container.Privileged:
		j.explain("/proc/driver/nvidia", "not masked", "a privileged container can take any mask off")
	default:
		j.explain("/proc/driver/nvidia", "not masked", "the container asked for an unmasked /proc in a user namespace, where it cannot write these files")
	}
}

// explainCompat enters whether the image's forward compatibility libraries are used.
func (j *Job) explainCompat(dir, reason string, used bool) {
	switch {
	case !j.Explain || dir == "":
	case used:
		j.explain("forward compatibility", "used", "%s: %s", dir, reason)
	case !j.Request.Has(request.Compute):
		j.explain("forward compatibility", "not used", "%s: the container does not have the capability compute", dir)
	default:
		j.explain("forward compatibility", "not used", "%s: %s", dir, reason)
	}
}

// remember keeps what an identifier was found to mean, for explainDevices.
func (j *Job) remember(id string, set device.Set) {
	if j.Explain && !slices.ContainsFunc(j.meanings, func(a meaning) bool { return a.id == id }) {
		j.meanings = append(j.meanings, meaning{id, set})
	}
}
