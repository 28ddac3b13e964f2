package gpuinject

import (
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host/device"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/policy"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/request"
)

// grant holds the devices that a container may have and the devices that it gets, and why.
type grant struct {
	Log
	// without is true if the container starts without the driver.
	without bool
	// requirements of the image, all of them satisfied.
	requirements []PlanRequirement
	// migRights are the names of the rights in set.
	migRights []string
	// may holds what the container may select from; enforced holds what it could select from in
	// mode "enforce".
	may, enforced policy.Grant
	// request is the container's request, without annotations that name devices it may not have.
	request request.Request
	// choices holds the ids of the request with the devices that they name on this host.
	choices []choice
	// set holds the devices that the container gets.
	set device.Set
	// gpus holds the GPUs that the container sees: whole GPUs and the GPUs of its MIG devices.
	gpus []device.GPU
}

// choice is an id and the devices that it names on this host, granted or not.
type choice struct {
	id  string
	set device.Set
	err error
}

// choose resolves the ids of a request.
func (g *grant) choose(h host.Host, r request.Request, a answers) {
	g.request, g.choices = r, nil
	for _, id := range r.Devices {
		x := choice{id: id}
		// Ids need not be resolved if nothing can be granted.
		if !g.may.Nothing() {
			x.set, x.err = selectIDs(h, []string{id}, a)
		}
		g.choices = append(g.choices, x)
	}
}
