package gpuinject

import (
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/request"
)

// memoryHook is what NVIDIA's hook is told that limits the GPU memory of a container,
// by memoryVariables (nvidia-container-toolkit 1.20).
const memoryHook = "apply-cuda-memory-limits"

var memoryVariables = []string{"NVIDIA_GPU_MEMORY_REQUEST", "NVIDIA_GPU_MEMORY_LIMIT"}

// checkMemoryLimit refuses a container that would lose a limit with NVIDIA's hook.
func (j *Job) checkMemoryLimit() error {
	limits := func(h specs.Hook) bool { return isCDIHook(h) && slices.Contains(h.Args, memoryHook) }
	if findHook(j.bundle.Spec.Hooks, limits) == nil {
		return nil
	}
	for _, entry := range j.bundle.Spec.Process.Env {
		if name := memoryVariable(entry); name != "" {
			return fail(Denied, "%s limits GPU memory by a hook of NVIDIA's CDI specification, which this runtime does not run: remove the variable, or start the container with another runtime", request.Quote(name))
		}
	}
	return nil
}

// memoryVariable is the name of an entry of an environment that limits GPU memory.
func memoryVariable(entry string) string {
	name, _, _ := strings.Cut(entry, "=")
	if slices.Contains(memoryVariables, name) {
		return name
	}
	return ""
}

// ignoreMemoryLimit tells of a limit that NVIDIA's default mode would set by a hook.
func (j *Job) ignoreMemoryLimit() {
	for _, entry := range j.bundle.Spec.Process.Env {
		if name := memoryVariable(entry); name != "" {
			j.ignore(name, "this runtime does not limit GPU memory")
		}
	}
}
