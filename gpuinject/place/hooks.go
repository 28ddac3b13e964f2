package place

import (
	"slices"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/bundle"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/request"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/verdict"
)

// RemoveHooks removes NVIDIA's hooks or, with refuse, refuses the container.
func RemoveHooks(c Container, refuse bool) (Changes, error) {
	ch := Changes{Edits: bundle.Edits{RemoveHook: request.IsNVIDIAHook}}
	for _, h := range request.Hooks(c.Bundle.Spec.Hooks) {
		switch subject := "hook " + request.Quote(h.Path); {
		case !request.IsNVIDIAHook(h):
			ch.Decide(subject, "kept", "it is not one of NVIDIA's")
		case refuse:
			return ch, verdict.Denied("the container has NVIDIA's OCI hook %s and foreign-hooks is \"refuse\": remove what adds it", request.Quote(h.Path))
		default:
			ch.RemovedHooks = append(ch.RemovedHooks, h.Path)
			ch.Decide(subject, "removed", "it is NVIDIA's: the devices that were granted are injected here")
		}
	}
	return ch, nil
}

// memoryHook is the argument of NVIDIA's hook that limits the GPU memory of a container by
// NVIDIA_GPU_MEMORY_REQUEST and NVIDIA_GPU_MEMORY_LIMIT (nvidia-container-toolkit 1.20).
const memoryHook = "apply-cuda-memory-limits"

// IgnoreMemoryLimits refuses a container that would lose a memory limit with NVIDIA's hook, and
// otherwise records that limits are ignored.
func IgnoreMemoryLimits(c Container) (ch Changes, err error) {
	byHook := c.Input.EditedByCDI && slices.ContainsFunc(request.Hooks(c.Bundle.Spec.Hooks), func(h specs.Hook) bool {
		return request.IsCDIHook(h) && slices.Contains(h.Args, memoryHook)
	})
	for _, name := range []string{"NVIDIA_GPU_MEMORY_REQUEST", "NVIDIA_GPU_MEMORY_LIMIT"} {
		switch _, ok := c.Input.Env[name]; {
		case ok && byHook:
			return ch, verdict.Denied("%q limits GPU memory by a hook of NVIDIA's CDI specification, which this runtime does not run: remove the variable, or start the container with another runtime", name)
		case ok:
			ch.Ignore(name, "this runtime does not limit GPU memory")
		}
	}
	if _, ok := c.Input.Env["NVIDIA_GPU_MEMORY_LIMITS"]; ok {
		ch.Ignore("NVIDIA_GPU_MEMORY_LIMITS", "there is no such variable; NVIDIA's is NVIDIA_GPU_MEMORY_LIMIT, and this runtime does not limit GPU memory")
	}
	return ch, nil
}
