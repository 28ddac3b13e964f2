package gpuinject

import (
	"strings"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/bundle"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/policy"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/request"
)

// notForeign is why a pod's container gets no other vendors' devices by asking here.
const notForeign = "in a pod the kubelet and containerd give other vendors' devices"

// resolveForeign is Resolve for a container that names other vendors' devices and
// nothing of NVIDIA's: neither GPUs nor the driver are looked for.
func (j *Job) resolveForeign() error {
	audited := j.Container.Kubernetes && j.Config.Policy.Kubernetes == config.Audit
	switch {
	case policy.EnvironmentGrants(j.Config.Policy, j.Container) || j.callerNamed():
	case audited:
		j.audit(notForeign)
	case j.Container.Kubernetes:
		return j.notGranted("no device was given: " + notForeign)
	default:
		return j.notGranted("accept-env-when-unprivileged is off and the container is not privileged")
	}
	j.Plan.Grant = "CDI specifications of this host"
	j.Plan.Asked, j.Plan.Capabilities = j.Request.Foreign, nil
	j.Plan.setGPUs(nil)
	j.Plan.setDevices(nil)
	return j.loadForeign()
}

// callerNamed tells whether the caller of containerd named the devices, not the
// environment, which an image can have.
func (j *Job) callerNamed() bool {
	return (j.Request.Mounted || j.Request.Annotated) && !j.Container.Kubernetes
}

// findForeign finds the other vendors' devices that are named beside NVIDIA's.
// Where the environment grants GPUs it grants these too.
func (j *Job) findForeign() error {
	switch {
	case len(j.Request.Foreign) == 0:
		return nil
	case !j.grant.All && !j.callerNamed():
		j.ignore(strings.Join(j.Request.Foreign, ","), notForeign)
		j.explain(strings.Join(j.Request.Foreign, ","), "ignored", "%s", notForeign)
		return nil
	case j.grant.Enforced != nil:
		j.audit(notForeign)
	}
	return j.loadForeign()
}

func (j *Job) loadForeign() error {
	if j.AskCDI == nil {
		return fail(Internal, "%s: nobody is there to read CDI specifications", j.Request.Reason)
	}
	user := j.bundle.Spec.Process.User
	found, err := j.AskCDI(bundle.CDIRequest{
		Dirs: j.Config.Host.CDISpecDirs, Names: j.Request.Foreign,
		UID: user.UID, GID: user.GID, UserNamespace: inUserNamespace(j.bundle.Spec.Linux),
	})
	if err != nil {
		return fail(Precondition, "%s: %w", j.Request.Reason, err)
	}
	if found.Unknown != "" {
		return fail(Invalid, "%s: %s", j.Request.Reason, found.Unknown)
	}
	j.foreign, j.Plan.Foreign = found, j.Request.Foreign
	for _, name := range j.Request.Foreign {
		j.explain(name, "given", "by the CDI specifications of this host")
	}
	if h := findHook(found.Hooks, isForeignHook); h != nil {
		return fail(Denied, "the CDI specification of %s has NVIDIA's OCI hook %s: name NVIDIA's devices by their own names", request.Quote(strings.Join(j.Request.Foreign, ",")), request.Quote(h.Path))
	}
	return nil
}

// addForeign adds what the specifications say to the edits.
func (j *Job) addForeign(e *bundle.Edits) {
	f := j.foreign
	if f == nil {
		return
	}
	e.Env, e.Hooks = f.Env, f.Hooks
	e.Devices, e.Rules, e.Mounts = append(e.Devices, f.Devices...), append(e.Rules, f.Rules...), append(e.Mounts, f.Mounts...)
	e.AdditionalGids = append(e.AdditionalGids, f.AdditionalGids...)
}
