package gpuinject

import (
	"slices"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/request"
)

// nvidiaHooks are the programs of NVIDIA's own stack that other tools put into a specification as
// OCI hooks: docker --gpus, CDI specifications. They would inject the same GPUs again, by executing
// programs around the image (CVE-2025-23266, CVE-2025-23267).
var nvidiaHooks = []string{"nvidia-container-runtime-hook", "nvidia-container-toolkit", "nvidia-container-cli", "nvidia-ctk", "nvidia-cdi-hook"}

func isNVIDIAHook(h specs.Hook) bool {
	return slices.ContainsFunc(nvidiaHooks, func(name string) bool { return request.HookRuns(h, name) })
}

// planHooks removes NVIDIA's hooks, or refuses the container for them if the operator wants none.
func planHooks(c Container, p *Plan) error {
	p.edits.RemoveHook = isNVIDIAHook
	for _, h := range request.Hooks(c.Bundle.Spec.Hooks) {
		switch subject := "hook " + request.Quote(h.Path); {
		case !isNVIDIAHook(h):
			p.decide(subject, "kept", "it is not one of NVIDIA's")
		case c.Config.Policy.ForeignHooks == config.Refuse:
			return fail(Denied, "the container has NVIDIA's OCI hook %s and foreign-hooks is \"refuse\": remove what adds it", request.Quote(h.Path))
		default:
			p.RemovedHooks = append(p.RemovedHooks, h.Path)
			p.decide(subject, "removed", "it is NVIDIA's and would inject the same devices again")
		}
	}
	return nil
}
