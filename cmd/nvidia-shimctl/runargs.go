package main

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/urfave/cli/v3"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/request"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/term"
)

// engines are the values of --for.
var engines = []string{"docker", "podman", "nerdctl", "ctr"}

// runArgs is the JSON output of run-args.
type runArgs struct {
	For  string   `json:"for"`
	Args []string `json:"args"`
	// The rest is what the arguments are made of.
	GPUs    []gpuinject.PlanGPU `json:"gpus"`
	Devices []gpuinject.Bind    `json:"devices"`
	Files   []gpuinject.Bind    `json:"files"`
	Groups  []uint32            `json:"groups"`
	Env     []string            `json:"env"`
	// Limits say what the shim does and these arguments cannot.
	Limits []string `json:"limits"`
}

func runArgsCommand() *cli.Command {
	return &cli.Command{
		Name:  "run-args",
		Usage: "print the flags that give a container the same GPUs without this shim",
		Description: "Each flag is on a line of its own, for a command substitution. " +
			"They come from the plan of the shim; the standard error says what such flags cannot do.",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "for", Usage: "`ENGINE` that the flags are for: " + strings.Join(engines, ", ")},
			&cli.StringFlag{Name: "devices", Value: request.All, Usage: "`LIST` of GPUs, as in NVIDIA_VISIBLE_DEVICES"},
			&cli.StringFlag{Name: "capabilities", Usage: "`LIST` of driver capabilities, as in NVIDIA_DRIVER_CAPABILITIES"},
			&cli.StringSliceFlag{Name: "env", Aliases: []string{"e"}, Usage: "further environment variable `K=V` of the container, as NVIDIA_IMEX_CHANNELS=0; may be repeated"},
		},
		Action: func(_ context.Context, c *cli.Command) error {
			env := []string{request.EnvVisibleDevices + "=" + c.String("devices")}
			if c.IsSet("capabilities") {
				env = append(env, request.EnvCapabilities+"="+c.String("capabilities"))
			}
			r, err := makeRunArgs(c, c.String("for"), append(env, c.StringSlice("env")...))
			if err != nil {
				return err
			}
			if c.Bool("json") {
				return printJSON(c.Root().Writer, r)
			}
			for _, a := range r.Args {
				fmt.Fprintln(c.Root().Writer, a)
			}
			limits := term.New(c.Root().ErrWriter)
			for _, l := range r.Limits {
				limits.Field("limit:", 7, term.Yellow, l)
			}
			return nil
		},
	}
}

// makeRunArgs plans a container with an environment, and makes the arguments for what it needs of
// the host.
func makeRunArgs(c *cli.Command, engine string, env []string) (*runArgs, error) {
	if !slices.Contains(engines, engine) {
		return nil, usage(fmt.Errorf("--for %.256q is not one of %s", engine, strings.Join(engines, ", ")))
	}
	spec, err := plainSpec(env)
	if err != nil {
		return nil, err
	}
	container, err := gpuinject.ExamineSpec(spec, loader(c))
	if err != nil {
		return nil, err
	}
	if !container.Asks {
		return nil, usage(errors.New("with these variables a container does not ask for the driver: --devices"))
	}
	plan, err := resolve(c, container)
	if err != nil {
		return nil, err
	}
	if !plan.GPU {
		return nil, errors.New(plan.Grant)
	}
	s := plan.Standalone()
	r := &runArgs{
		For: engine, GPUs: plan.GPUs, Devices: []gpuinject.Bind{}, Files: s.Files, Groups: append([]uint32{}, s.Groups...),
		Env: []string{
			"LD_LIBRARY_PATH=" + path.Join(gpuinject.ViewDir, "lib") + ":" + path.Join(gpuinject.ViewDir, "lib64"),
			// Keeps an NVIDIA runtime that is the engine's default from injecting, too.
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
		r.Devices = append(r.Devices, gpuinject.Bind{Source: n.HostPath, Destination: n.Path})
	}
	for _, name := range s.Omitted {
		r.Limits = append(r.Limits, name+" is a file that the shim makes: it is left out")
	}
	return r, r.makeArgs()
}

// makeArgs makes the flags. Docker, Podman and nerdctl have the same ones.
func (r *runArgs) makeArgs() error {
	ctr := r.For == "ctr"
	// A shell splits and expands what a command substitution prints.
	separators := " \t\n*?[:"
	if ctr {
		separators = " \t\n*?[,\""
	}
	for _, b := range slices.Concat(r.Devices, r.Files) {
		if strings.ContainsAny(b.Source+b.Destination, separators) {
			return fmt.Errorf("%q has one of the characters %q, which a flag of %s cannot have", b.Source, separators, r.For)
		}
	}
	for _, d := range r.Devices {
		if !ctr {
			r.Args = append(r.Args, "--device="+d.Source+":"+d.Destination+":rw")
			continue
		}
		// The --device of ctr has no other place in the container than the host's: if that
		// differs, it only adds the rule, and the node is bound.
		r.Args = append(r.Args, "--device="+d.Source)
		if d.Source != d.Destination {
			r.Args = append(r.Args, "--mount=type=bind,src="+d.Source+",dst="+d.Destination+",options=bind:nosuid:noexec:rprivate")
		}
	}
	for _, f := range r.Files {
		if ctr {
			r.Args = append(r.Args, "--mount=type=bind,src="+f.Source+",dst="+f.Destination+",options=rbind:ro:nosuid:nodev:rprivate")
		} else {
			r.Args = append(r.Args, "--volume="+f.Source+":"+f.Destination+":ro")
		}
	}
	if ctr {
		r.Limits = append(r.Limits, "ctr also lets the container make nodes of these devices (rwm)")
		if len(r.Groups) > 0 {
			r.Limits = append(r.Limits, fmt.Sprintf("ctr cannot add groups: a user that is not root needs one of %v to open the DRM nodes", r.Groups))
		}
	} else {
		for _, g := range r.Groups {
			r.Args = append(r.Args, "--group-add="+strconv.FormatUint(uint64(g), 10))
		}
	}
	for _, v := range r.Env {
		r.Args = append(r.Args, "--env="+v)
	}
	return nil
}
