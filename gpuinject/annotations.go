package gpuinject

import (
	"errors"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host/device"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/request"
)

// checkAnnotations passes over what a pod's annotations name where it was not all
// allocated to the container: their author may not have meant this runtime, and what
// was allocated is given as if they were not there.
func (j *Job) checkAnnotations() error {
	if j.otherwise == nil {
		return nil
	}
	// Nobody has to be asked what an id means of which nothing can be granted.
	ok := len(j.Request.Devices) == 0 || !j.grant.Nothing()
	for _, id := range j.Request.Devices {
		if !ok {
			break
		}
		set, err := j.find([]string{id})
		if errors.Is(err, device.ErrFacts) {
			// Not to be taken for another's: it may be the very device that was allocated.
			return fail(Precondition, "%s: %w", j.Request.Reason, err)
		}
		ok = err == nil && (j.grant.AllowsAll(set) || id == request.All)
	}
	if ok {
		return nil
	}
	j.ignore(j.Request.Reason, "not what was allocated to the container: "+j.grant.Reason)
	switch {
	case j.otherwiseErr != nil:
		return j.otherwiseErr
	case !j.otherwise.Driver:
		return j.notGranted(j.grant.Reason)
	}
	j.Request = *j.otherwise
	j.plan()
	return nil
}
