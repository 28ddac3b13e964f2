package gpuinject

import (
	"slices"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/request"
)

// memoryHook is the argument of NVIDIA's hook that limits the GPU memory of a container by
// memoryVariables (nvidia-container-toolkit 1.20).
const memoryHook = "apply-cuda-memory-limits"

var memoryVariables = []string{"NVIDIA_GPU_MEMORY_REQUEST", "NVIDIA_GPU_MEMORY_LIMIT"}

// mistypedLimit is not a name of NVIDIA's and is easily taken for one.
const mistypedLimit = "NVIDIA_GPU_MEMORY_LIMITS"

// checkMemoryLimit refuses a container that would lose a limit with NVIDIA's hook.
func checkMemoryLimit(c Container) error {
	limits := func(h specs.Hook) bool { return request.IsCDIHook(h) && slices.Contains(h.Args, memoryHook) }
	if !slices.ContainsFunc(request.Hooks(c.Bundle.Spec.Hooks), limits) {
		return nil
	}
	for _, name := range memoryVariables {
		if _, ok := c.Said.Env[name]; ok {
			return fail(Denied, "%s limits GPU memory by a hook of NVIDIA's CDI specification, which this runtime does not run: remove the variable, or start the container with another runtime", request.Quote(name))
		}
	}
	return nil
}

// ignoreMemoryLimits records the limits that NVIDIA's default mode would set by a hook.
func ignoreMemoryLimits(c Container, p *Plan) {
	for _, name := range memoryVariables {
		if _, ok := c.Said.Env[name]; ok {
			p.ignore(name, "this runtime does not limit GPU memory")
		}
	}
	if _, ok := c.Said.Env[mistypedLimit]; ok {
		p.ignore(mistypedLimit, "there is no such variable; NVIDIA's is NVIDIA_GPU_MEMORY_LIMIT, and this runtime does not limit GPU memory")
	}
}
