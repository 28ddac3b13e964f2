package gpuinject

import (
	"path"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/request"
)

// foreignHooks are the programs of NVIDIA's own stack that other tools put into a
// specification as OCI hooks: docker --gpus, CDI specifications. They would inject
// the same GPUs again, by executing programs around the image (CVE-2025-23266,
// CVE-2025-23267).
var foreignHooks = []string{"nvidia-container-runtime-hook", "nvidia-container-toolkit", "nvidia-container-cli", "nvidia-ctk", "nvidia-cdi-hook"}

func isForeignHook(h specs.Hook) bool {
	return slices.ContainsFunc(foreignHooks, func(name string) bool { return hookIs(h, name) })
}

// hookIs tells whether a hook runs a program of NVIDIA's: by its path, or where that
// is a wrapper, by the name that it is given. GPU Operator's programs are wrappers of
// <name>.real.
func hookIs(h specs.Hook, program string) bool {
	if strings.TrimSuffix(path.Base(h.Path), ".real") == program {
		return true
	}
	return len(h.Args) > 0 && strings.TrimSuffix(path.Base(h.Args[0]), ".real") == program
}

// findHook returns the first hook of any stage that match chooses.
func findHook(hooks *specs.Hooks, match func(specs.Hook) bool) *specs.Hook {
	if hooks == nil {
		return nil
	}
	all := allHooks(hooks)
	if i := slices.IndexFunc(all, match); i >= 0 {
		return &all[i]
	}
	return nil
}

// allHooks are the hooks of all stages.
func allHooks(hooks *specs.Hooks) []specs.Hook {
	//nolint:staticcheck // Prestart is deprecated and still what docker --gpus uses.
	return slices.Concat(hooks.Prestart, hooks.CreateRuntime, hooks.CreateContainer, hooks.StartContainer, hooks.Poststart, hooks.Poststop)
}

// checkHooks refuses a container that has hooks of NVIDIA's where the operator
// wants none, before anything is changed.
func (j *Job) checkHooks() error {
	if j.Config.Policy.ForeignHooks != config.Refuse {
		return nil
	}
	if h := findHook(j.bundle.Spec.Hooks, isForeignHook); h != nil {
		return fail(Denied, "the container has NVIDIA's OCI hook %s and foreign-hooks is \"refuse\": remove what adds it", request.Quote(h.Path))
	}
	return nil
}
