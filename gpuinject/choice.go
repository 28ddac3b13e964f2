package gpuinject

import (
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host/device"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/policy"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/request"
)

// grant is what a container may have of the host's devices, and what it gets.
type grant struct {
	// may is what it may select from; enforced is what the mode "enforce" would let it select from.
	may, enforced policy.Grant
	// request is what it asks for: without annotations that name what it may not have.
	request request.Request
	// choices are what the ids of the request mean on this host.
	choices []choice
	// set are the devices that it gets.
	set device.Set
	// gpus are the GPUs that it sees: whole GPUs and the GPUs of its MIG devices.
	gpus []device.GPU
}

// choice is an id and what it means on this host, granted or not.
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
		// An id of which nothing can be granted need not be understood.
		if !g.may.Nothing() {
			x.set, x.err = selectIDs(h, []string{id}, a)
		}
		g.choices = append(g.choices, x)
	}
}
