package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/urfave/cli/v3"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/request"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/term"
)

// engines are the programs that run-args knows.
var engines = []string{"docker", "podman", "nerdctl", "ctr"}

// runArgs is what run-args prints as JSON.
type runArgs struct {
	For  string   `json:"for"`
	Args []string `json:"args"`
	// What the arguments are made of.
	GPUs    []gpuinject.PlanGPU `json:"gpus"`
	Devices []nodePair          `json:"devices"`
	Files   []gpuinject.Bind    `json:"files"`
	Groups  []uint32            `json:"groups"`
	Env     []string            `json:"env"`
	// Limits say what the shim does and these arguments cannot.
	Limits []string `json:"limits"`
}

// nodePair is a device node on the host and in the container.
type nodePair struct {
	Source      string `json:"source"`
	Destination string `json:"destination"`
}

func runArgsCommand() *cli.Command {
	return &cli.Command{
		Name:  "run-args",
		Usage: "print the flags by which a container has the same GPUs without this shim",
		Description: "Each flag is on a line of its own, for a command substitution: docker run $(nvidia-shimctl run-args --for docker) IMAGE. " +
			"They come from the plan of the shim; what such flags cannot do is printed on the standard error.",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "for", Usage: "`ENGINE` that the flags are for: " + strings.Join(engines, ", ")},
			&cli.StringFlag{Name: "devices", Usage: "`LIST` of GPUs, as in NVIDIA_VISIBLE_DEVICES (default: all)"},
			&cli.StringFlag{Name: "capabilities", Usage: "`LIST` of driver capabilities, as in NVIDIA_DRIVER_CAPABILITIES"},
			&cli.StringSliceFlag{Name: "env", Aliases: []string{"e"}, Usage: "further environment variable `K=V` of the container, as NVIDIA_IMEX_CHANNELS=0"},
		},
		Action: func(_ context.Context, c *cli.Command) error {
			if err := noArguments(c); err != nil {
				return err
			}
			engine := c.String("for")
			if !slices.Contains(engines, engine) {
				return usage(fmt.Errorf("--for %q is not one of %s", engine, strings.Join(engines, ", ")))
			}
			job, err := standaloneJob(c)
			if err != nil {
				return err
			}
			r, err := makeRunArgs(engine, job)
			if err != nil {
				return err
			}
			if c.Bool("json") {
				return printJSON(c.Root().Writer, r)
			}
			return r.print(c.Root().Writer, c.Root().ErrWriter)
		},
	}
}

// standaloneJob takes a container with the flags' environment through the shim's steps.
func standaloneJob(c *cli.Command) (*gpuinject.Job, error) {
	env := slices.Clone(c.StringSlice("env"))
	if c.IsSet("capabilities") {
		env = append(env, request.EnvCapabilities+"="+c.String("capabilities"))
	}
	const devices = request.EnvVisibleDevices + "="
	switch {
	case c.IsSet("devices"):
		env = append(env, devices+c.String("devices"))
	case !slices.ContainsFunc(env, func(v string) bool { return strings.HasPrefix(v, devices) }):
		env = append(env, devices+request.All)
	}
	job, err := gpuinject.ExamineSpec(plainSpec(env), loader(c))
	if err != nil {
		return nil, err
	}
	if job == nil {
		return nil, usage(errors.New("with these variables a container does not ask for the driver: --devices"))
	}
	ask(c, job)
	err = job.Resolve()
	if errors.Is(err, gpuinject.ErrNotGranted) {
		err = errors.New(job.Plan.Grant)
	}
	if err == nil {
		err = job.Preview("")
	}
	return job, err
}

// libraryPath has the directories of the CUDA images' own LD_LIBRARY_PATH.
var libraryPath = "LD_LIBRARY_PATH=" + path.Join(gpuinject.ViewDir, "lib") + ":" + path.Join(gpuinject.ViewDir, "lib64")

func makeRunArgs(engine string, job *gpuinject.Job) (*runArgs, error) {
	s := job.Standalone()
	r := &runArgs{
		For: engine, GPUs: job.Plan.GPUs, Devices: []nodePair{}, Files: s.Files, Groups: append([]uint32{}, s.Groups...),
		// void: a runtime of NVIDIA's that is the engine's default stays out.
		Env: []string{libraryPath, request.EnvVisibleDevices + "=void"},
		Limits: []string{
			"/proc/driver/nvidia is not masked: the container sees which other GPUs the host has, and cannot open them",
			"no ld.so.cache is written: programs find the driver by LD_LIBRARY_PATH, which replaces that of the image",
			"what the image requires (NVIDIA_REQUIRE_*) and its forward compatibility package are not looked at",
			"the flags are for this host and this driver: print them anew after a driver upgrade or a change of MIG",
		},
	}
	for _, n := range s.Nodes {
		r.Devices = append(r.Devices, nodePair{n.HostPath, n.Path})
	}
	for _, name := range s.Omitted {
		r.Limits = append(r.Limits, name+" is a file that the shim makes: it is left out")
	}
	if engine == "ctr" {
		return r, r.forCtr()
	}
	return r, r.forDocker()
}

// forDocker makes flags that Docker, Podman and nerdctl have in common.
func (r *runArgs) forDocker() error {
	pair := func(flag, source, dest, options string) error {
		if strings.Contains(source+dest, ":") {
			return fmt.Errorf("%q has a colon, which no flag can say", source)
		}
		r.Args = append(r.Args, flag+source+":"+dest+":"+options)
		return nil
	}
	for _, d := range r.Devices {
		if err := pair("--device=", d.Source, d.Destination, "rw"); err != nil {
			return err
		}
	}
	for _, g := range r.Groups {
		r.Args = append(r.Args, "--group-add="+strconv.FormatUint(uint64(g), 10))
	}
	for _, f := range r.Files {
		if err := pair("--volume=", f.Source, f.Destination, "ro"); err != nil {
			return err
		}
	}
	for _, v := range r.Env {
		r.Args = append(r.Args, "--env="+v)
	}
	return nil
}

// forCtr makes flags of ctr run. Its --device knows no other place in the container than
// the host's: where that differs the node is bound, and --device has its rule.
func (r *runArgs) forCtr() error {
	mount := func(source, dest, options string) error {
		if strings.ContainsAny(source+dest, ",\"\n") {
			return fmt.Errorf("%q has a comma or a quotation mark, which no flag can say", source)
		}
		r.Args = append(r.Args, "--mount=type=bind,src="+source+",dst="+dest+",options="+options)
		return nil
	}
	for _, d := range r.Devices {
		r.Args = append(r.Args, "--device="+d.Source)
		if d.Source == d.Destination {
			continue
		}
		if err := mount(d.Source, d.Destination, "bind:nosuid:noexec:rprivate"); err != nil {
			return err
		}
	}
	for _, f := range r.Files {
		if err := mount(f.Source, f.Destination, "rbind:ro:nosuid:nodev:rprivate"); err != nil {
			return err
		}
	}
	for _, v := range r.Env {
		r.Args = append(r.Args, "--env="+v)
	}
	r.Limits = append(r.Limits, "ctr lets the container make nodes of these devices, too (rwm)")
	if len(r.Groups) > 0 {
		r.Limits = append(r.Limits, fmt.Sprintf("ctr cannot add groups: a user that is not root needs one of %v to open the DRM nodes", r.Groups))
	}
	return nil
}

// print writes one flag a line, for a shell; what there is to know goes to stderr.
func (r *runArgs) print(w, notes io.Writer) error {
	for _, a := range r.Args {
		if _, err := fmt.Fprintln(w, shellQuote(a)); err != nil {
			return err
		}
	}
	o := term.New(notes)
	for _, l := range r.Limits {
		o.Field("limit:", 7, term.Yellow, l)
	}
	return nil
}

// shellQuote writes a word for a POSIX shell. A word without characters that mean
// something to it stays as it is, so that a command substitution needs no eval.
func shellQuote(s string) string {
	const plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_@%+=:,./-"
	if s != "" && strings.Trim(s, plain) == "" {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}
