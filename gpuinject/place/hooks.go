package place

import (
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/bundle"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/request"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/verdict"
)

// RemoveHooks removes NVIDIA's hooks or, with refuse, refuses the container.
func RemoveHooks(c Container, refuse bool) (Changes, error) {
	ch := Changes{Edits: bundle.Edits{RemoveHook: request.IsNVIDIAHook}} // guard: hooks: NVIDIA's removed
	for _, h := range request.Hooks(c.Bundle.Spec.Hooks) {
		switch subject := "hook " + request.Quote(h.Path); {
		case !request.IsNVIDIAHook(h):
			ch.Decide(subject, "kept", "it is not one of NVIDIA's")
		case refuse: // guard: hooks: foreign-hooks
			return ch, verdict.Denied("the container has NVIDIA's OCI hook %s and foreign-hooks is \"refuse\": remove what adds it", request.Quote(h.Path))
		default:
			ch.RemovedHooks = append(ch.RemovedHooks, h.Path)
			ch.Decide(subject, "removed", "it is NVIDIA's: the devices that were granted are injected here")
		}
	}
	return ch, nil
}
