package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/urfave/cli/v3"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/bundle"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/request"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/verdict"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/preview"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/term"
)

func planCommand() *cli.Command {
	return &cli.Command{
		Name:        "plan",
		Usage:       "show what the shim would do, or did, for a container, and why (read-only)",
		Description: "The container is one that exists, or one with the variables, mounts and annotations of these flags.",
		Flags: append([]cli.Flag{
			&cli.StringFlag{Name: "pod", Usage: "what was done for the container of the pod `NAMESPACE/NAME`"},
			&cli.StringFlag{Name: "container", Usage: "its `NAME` in the pod; without --pod its name in Docker, containerd's id, or the beginning of it, or NAMESPACE/ID"},
			&cli.StringFlag{Name: "bundle", Usage: "OCI bundle `DIR` of the container"},
			&cli.StringSliceFlag{Name: "env", Aliases: []string{"e"}, Usage: "environment variable `K=V` of the container; may be repeated"},
			&cli.StringSliceFlag{Name: "mount", Usage: "bind mount `SRC:DST` of the container; may be repeated"},
			&cli.StringMapFlag{Name: "annotation", Usage: "annotation `K=V` of the container; may be repeated"},
			&cli.BoolFlag{Name: "privileged", Usage: "the container is privileged"},
			&cli.StringFlag{Name: "rootfs", Usage: "root file system `DIR` of the image, to include its C library"},
			stateFlag(),
		}, hostFlags()...),
		Action: inHost(func(_ context.Context, c *cli.Command) error {
			plan, err := makePlan(c)
			var refused *verdict.Error
			switch {
			case errors.Is(err, fs.ErrPermission) && os.Geteuid() != 0:
				return err
			case errors.As(err, &refused):
				plan.GPU, plan.Error = false, err.Error()
			case err != nil:
				return err
			}
			return output(c, plan, plan.Error == "", func(o *term.Output) { printPlan(o, plan) })
		}),
	}
}

// makePlan runs the shim's own steps for the container that the flags describe, without carrying
// out the plan.
func makePlan(c *cli.Command) (gpuinject.Plan, error) {
	if c.IsSet("pod") || c.IsSet("container") {
		return livePlan(c)
	}
	container, err := examine(c)
	if err != nil {
		return gpuinject.Plan{}, err
	}
	return planOf(c, container)
}

func examine(c *cli.Command) (gpuinject.Container, error) {
	dir := c.String("bundle")
	if dir == "" {
		spec, err := flagSpec(c)
		if err != nil {
			return gpuinject.Container{}, err
		}
		return planner(c).Examine(spec)
	}
	if slices.ContainsFunc([]string{"env", "mount", "annotation", "privileged"}, c.IsSet) {
		return gpuinject.Container{}, usage(errors.New("--bundle cannot be combined with flags that describe a container"))
	}
	// The shim leaves a bundle without a configuration to runc; here the name is mistyped.
	if _, err := os.Stat(filepath.Join(dir, bundle.ConfigName)); err != nil {
		return gpuinject.Container{}, err
	}
	return gpuinject.Examine(dir, loader(c))
}

func flagSpec(c *cli.Command) (*specs.Spec, error) {
	env, err := envFlag(c)
	if err != nil {
		return nil, err
	}
	spec := preview.Spec(env)
	if c.Bool("privileged") {
		preview.Privilege(spec)
	}
	for _, m := range c.StringSlice("mount") {
		src, dst, ok := strings.Cut(m, ":")
		if !ok || !strings.HasPrefix(dst, "/") {
			return nil, usage(fmt.Errorf("--mount %.256q is not SRC:DST", m))
		}
		spec.Mounts = append(spec.Mounts, specs.Mount{Source: src, Destination: dst, Type: "bind", Options: []string{"rbind"}})
	}
	spec.Annotations = c.StringMap("annotation")
	return spec, nil
}

const planColumns = 14

func printPlan(o *term.Output, p gpuinject.Plan) {
	if who := p.Container; who != nil {
		o.Field("container:", planColumns, term.Bold, who.ID+" in "+who.Namespace)
		if who.Pod != "" {
			o.Field("pod:", planColumns, term.Bold, who.Pod+" in "+who.PodNamespace+", container "+who.Name)
		}
	}
	switch {
	case p.Error != "":
		o.Field("refused:", 9, term.Red, p.Error)
	case !p.GPU:
		o.Field("no GPU:", 8, term.Yellow, p.Reason)
		if p.Grant != "" {
			o.Field("", 2, term.Plain, p.Grant)
		}
	default:
		printGranted(o, p)
	}
	label := "because:"
	if p.Error != "" {
		label = "before:" // the decisions before the refusal
	}
	for _, d := range p.Decisions {
		o.Field(label, planColumns, term.Bold, fmt.Sprintf("%s: %s: %s", d.Subject, d.Decision, d.Reason))
		label = ""
	}
}

func printGranted(o *term.Output, p gpuinject.Plan) {
	field := func(label string, s term.Style, values ...string) {
		for _, v := range values {
			o.Field(label+":", planColumns, s, v)
		}
	}
	field("asked", term.Bold, p.Reason)
	field("grant", term.Bold, p.Grant)
	field("driver", term.Bold, cmp.Or(p.DriverVersion, "of "+host.PlatformTitle(p.Platform)))
	field("capabilities", term.Bold, strings.Join(p.Capabilities, ","))
	for _, g := range p.GPUs {
		field(fmt.Sprintf("GPU %d", g.Index), term.Green, fmt.Sprintf("%s at %s, minor %d", g.UUID, g.PCI, g.Minor))
	}
	for _, l := range p.Memory {
		field("memory", term.Bold, fmt.Sprintf("%s of %s, from %s", l, l.UUID, l.From))
	}
	for _, r := range p.Requirements {
		field("requirement", term.Bold, r.Variable+", satisfied by "+request.Quote(strings.Join(r.SatisfiedBy, " ")))
	}
	for _, m := range p.MIG {
		field("MIG device", term.Green, m.String())
	}
	field("MIG right", term.Yellow, p.MIGRights...)
	for _, d := range p.Devices {
		field("device", term.Bold, fmt.Sprintf("%s (%d:%d rw)", d.Path, d.Major, d.Minor))
	}
	for _, m := range p.Mounts {
		field("mount", term.Bold, m.Destination+" from "+m.Source)
	}
	for _, l := range p.Links {
		field("link", term.Bold, l.Path+" to "+l.Target)
	}
	field("libraries", term.Bold, strings.Join(p.Libraries, " "))
	field("binaries", term.Bold, strings.Join(p.Binaries, " "))
	if p.Proc.Masked {
		field("proc", term.Bold, "masked, shows "+strings.Join(slices.Concat(p.Proc.GPUs, p.Proc.Capabilities), " "))
	} else {
		field("proc", term.Yellow, "not masked")
	}
	field("hook removed", term.Bold, p.RemovedHooks...)
	field("socket", term.Bold, p.Sockets...)
	field("ignored", term.Yellow, p.Ignored...)
	field("warning", term.Yellow, p.Warnings...)
	if p.Audit != "" {
		field("audit", term.Yellow, p.Audit)
	}
	field("note", term.Cyan, p.Notes...)
}
