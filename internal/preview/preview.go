package preview

import (
	"os"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/image"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/place"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/question"
)

// Planner makes plans with a configuration of the shim and a probe.
type Planner struct {
	Config func() (*config.Config, error)
	Ask    question.Ask
}

// Spec returns the specification of an unprivileged container with an environment, outside
// Kubernetes.
func Spec(env []string) *specs.Spec {
	return &specs.Spec{
		Process: &specs.Process{Env: env, Capabilities: &specs.LinuxCapabilities{}},
		Mounts:  []specs.Mount{{Destination: "/proc", Type: "proc", Source: "proc"}},
		Linux: &specs.Linux{
			Namespaces:  []specs.LinuxNamespace{{Type: specs.MountNamespace}},
			MaskedPaths: []string{"/proc/kcore"},
		},
	}
}

// Privilege makes a container privileged.
func Privilege(spec *specs.Spec) {
	spec.Process.Capabilities.Bounding = []string{"CAP_SYS_ADMIN"}
	spec.Linux.MaskedPaths = nil
}

// Examine reads a specification that has no bundle.
func (p Planner) Examine(spec *specs.Spec) (gpuinject.Container, error) {
	return gpuinject.ExamineSpec(spec, p.Config)
}

// Resolve resolves a container that requests the driver. rootfs is the root file system of its
// image; "" if the image is unknown.
func (p Planner) Resolve(c gpuinject.Container, rootfs string) (gpuinject.Plan, error) {
	unknown := rootfs == ""
	if unknown {
		empty, err := os.MkdirTemp("", "nvidia-shimctl-")
		if err != nil {
			return gpuinject.Plan{}, err
		}
		defer func() { _ = os.Remove(empty) }()
		rootfs = empty
	}
	root, err := image.Open(rootfs)
	if err != nil {
		return gpuinject.Plan{}, err
	}
	defer root.Close()
	plan, err := gpuinject.Resolve(c, root, p.Ask)
	if unknown {
		plan.Notes = slices.DeleteFunc(plan.Notes, func(n string) bool { return strings.HasPrefix(n, place.NoteNoCLibrary) })
	}
	return plan, err
}
