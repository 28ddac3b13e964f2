package runargs

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/place"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/request"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/view"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/cmdline"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/preview"
)

// Docker is the engine of `docker run`.
const Docker = "docker"

// Engines are the supported engines.
var Engines = []string{Docker, "podman", "nerdctl", "ctr"}

// Args are the flags for an engine.
type Args struct {
	For  string   `json:"for"`
	Args []string `json:"args"`
	// The arguments are made from these fields.
	GPUs    []gpuinject.PlanGPU `json:"gpus"`
	Devices []place.Bind        `json:"devices"`
	Files   []place.Bind        `json:"files"`
	Groups  []uint32            `json:"groups"`
	Env     []string            `json:"env"`
	// Limits list what the shim does and these arguments cannot do.
	Limits []string `json:"limits"`
}

// Make plans a container with an environment and returns the arguments for what it needs from the
// host.
func Make(p preview.Planner, engine string, env []string) (*Args, error) {
	if !slices.Contains(Engines, engine) {
		return nil, cmdline.Errorf("--for %.256q is not one of %s", engine, strings.Join(Engines, ", "))
	}
	container, err := p.Examine(preview.Spec(env))
	if err != nil {
		return nil, err
	}
	if !container.Asks {
		return nil, cmdline.Errorf("with these variables a container does not ask for GPUs: add --devices")
	}
	plan, err := p.Resolve(container, "")
	if err != nil {
		return nil, err
	}
	if !plan.GPU {
		return nil, errors.New(plan.Grant)
	}
	s := plan.Standalone()
	a := &Args{
		For: engine, GPUs: plan.GPUs, Devices: []place.Bind{}, Files: []place.Bind{}, Groups: append([]uint32{}, s.Groups...),
		Env: []string{
			"LD_LIBRARY_PATH=" + path.Join(view.Dir, "lib") + ":" + path.Join(view.Dir, "lib64"),
			// Keeps an NVIDIA runtime that is the engine's default from injecting GPUs as well.
			request.EnvVisibleDevices + "=void",
		},
		Limits: []string{
			"/proc/driver/nvidia is not masked: the container sees which other GPUs the host has, and cannot open them",
			"no ld.so.cache is written: programs find the driver by LD_LIBRARY_PATH, which replaces that of the image",
			"the image's requirements (NVIDIA_REQUIRE_*) and its forward compatibility package are ignored",
			"the flags are for this host and this driver: print them again after a driver upgrade or a change of MIG",
		},
	}
	for _, n := range s.Nodes {
		a.Devices = append(a.Devices, place.Bind{Source: n.HostPath, Destination: n.Path})
	}
	for _, l := range s.Libraries {
		a.Files = append(a.Files, l.Bind)
	}
	a.Files = append(a.Files, s.Files...)
	for _, name := range s.Omitted {
		a.Limits = append(a.Limits, name+" is a file that the shim makes: it is left out")
	}
	return a, a.addFlags()
}

// addFlags adds the flags. Docker, Podman and nerdctl have the same ones.
func (a *Args) addFlags() error {
	ctr := a.For == "ctr"
	// A shell splits and expands what a command substitution prints.
	separators := " \t\n*?[:"
	if ctr {
		separators = " \t\n*?[,\""
	}
	for _, b := range slices.Concat(a.Devices, a.Files) {
		if strings.ContainsAny(b.Source+b.Destination, separators) {
			return fmt.Errorf("%q has one of the characters %q, which a flag of %s cannot have", b.Source, separators, a.For)
		}
	}
	for _, d := range a.Devices {
		if !ctr {
			a.Args = append(a.Args, "--device="+d.Source+":"+d.Destination+":rw")
			continue
		}
		// ctr's --device uses the host's path in the container too. If the paths differ, it only
		// adds the device rule, and the node is bind-mounted.
		a.Args = append(a.Args, "--device="+d.Source)
		if d.Source != d.Destination {
			a.Args = append(a.Args, "--mount=type=bind,src="+d.Source+",dst="+d.Destination+",options=bind:nosuid:noexec:rprivate")
		}
	}
	for _, f := range a.Files {
		if ctr {
			a.Args = append(a.Args, "--mount=type=bind,src="+f.Source+",dst="+f.Destination+",options=rbind:ro:nosuid:nodev:rprivate")
		} else {
			a.Args = append(a.Args, "--volume="+f.Source+":"+f.Destination+":ro")
		}
	}
	if ctr {
		a.Limits = append(a.Limits, "ctr also lets the container make nodes of these devices (rwm)")
		if len(a.Groups) > 0 {
			a.Limits = append(a.Limits, fmt.Sprintf("ctr cannot add groups: a user that is not root needs one of %v to open the DRM nodes", a.Groups))
		}
	} else {
		for _, g := range a.Groups {
			a.Args = append(a.Args, "--group-add="+strconv.FormatUint(uint64(g), 10))
		}
	}
	for _, v := range a.Env {
		a.Args = append(a.Args, "--env="+v)
	}
	return nil
}
