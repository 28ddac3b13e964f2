package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/urfave/cli/v3"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/cdispec"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/bundle"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host/device"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/request"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/term"
)

func planCommand() *cli.Command {
	return &cli.Command{
		Name:  "plan",
		Usage: "show what the shim would do for a container, and why; nothing is changed",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "bundle", Usage: "OCI bundle `DIR` of the container"},
			&cli.StringSliceFlag{Name: "env", Aliases: []string{"e"}, Usage: "environment variable `K=V` of the container"},
			&cli.StringSliceFlag{Name: "mount", Usage: "bind mount `SRC:DST` of the container"},
			&cli.StringSliceFlag{Name: "annotation", Usage: "annotation `K=V` of the container"},
			&cli.BoolFlag{Name: "privileged", Usage: "the container is privileged"},
			&cli.StringFlag{Name: "rootfs", Usage: "root file system `DIR` of the image, to look at its C library"},
		},
		Action: func(_ context.Context, c *cli.Command) error {
			plan, err := makePlan(c)
			var refused *gpuinject.Error
			if err != nil && !errors.As(err, &refused) {
				return err
			}
			if err != nil {
				plan.GPU, plan.Error = false, err.Error()
			}
			w := c.Root().Writer
			if c.Bool("json") {
				if perr := printJSON(w, plan); perr != nil {
					return perr
				}
			} else {
				printPlan(w, plan)
			}
			if err != nil {
				return errProblem
			}
			return nil
		},
	}
}

// makePlan takes the container through the shim's own steps, less the changes.
func makePlan(c *cli.Command) (gpuinject.Plan, error) {
	job, root, raw, err := examine(c)
	if err != nil {
		return gpuinject.Plan{}, err
	}
	if job == nil {
		reason := "the container does not ask for the driver: the shim leaves it alone"
		if why := gpuinject.WhyLeftAlone(raw, loader(c)); why != "" {
			reason += ": " + why
		}
		return gpuinject.Plan{Reason: reason}, nil
	}
	ask(c, job)
	switch err := job.Resolve(); {
	case errors.Is(err, gpuinject.ErrNotGranted):
		return job.Plan, nil
	case err != nil:
		return job.Plan, err
	}
	if r := c.String("rootfs"); r != "" {
		root = r
	}
	err = job.Preview(root)
	return job.Plan, err
}

// ask lets the job ask as the shim does, and explain itself.
func ask(c *cli.Command, job *gpuinject.Job) {
	job.AskKubelet, job.Explain = askKubelet, true
	job.AskNVML = func() (facts device.Facts, err error) { return facts, askNVML(c, "facts", &facts) }
	job.AskCDI = cdispec.Find
}

// plainSpec is a container outside Kubernetes that is not privileged.
func plainSpec(env []string) *specs.Spec {
	return &specs.Spec{
		Process:     &specs.Process{Env: env, Capabilities: &specs.LinuxCapabilities{}},
		Annotations: map[string]string{},
		Mounts:      []specs.Mount{{Destination: "/proc", Type: "proc", Source: "proc"}},
		Linux: &specs.Linux{
			Namespaces:  []specs.LinuxNamespace{{Type: specs.MountNamespace}},
			MaskedPaths: []string{"/proc/kcore"},
		},
	}
}

// examine returns the container's root file system too, where there is a bundle, and
// its configuration.
func examine(c *cli.Command) (job *gpuinject.Job, root string, raw []byte, err error) {
	if dir := c.String("bundle"); dir != "" {
		if len(c.StringSlice("env"))+len(c.StringSlice("mount"))+len(c.StringSlice("annotation")) > 0 || c.Bool("privileged") {
			return nil, "", nil, usage(errors.New("--bundle goes with no description of the container"))
		}
		// To the shim a bundle without a configuration is somebody else's affair; here
		// it is a mistyped name.
		if _, err := os.Stat(filepath.Join(dir, bundle.ConfigName)); err != nil {
			return nil, "", nil, err
		}
		job, raw, err := gpuinject.Examine(dir, loader(c))
		if err != nil || job == nil {
			return job, "", raw, err
		}
		root, err = gpuinject.RootPath(dir)
		return job, root, raw, err
	}
	spec := plainSpec(c.StringSlice("env"))
	if c.Bool("privileged") {
		spec.Process.Capabilities.Bounding = []string{"CAP_SYS_ADMIN"}
		spec.Linux.MaskedPaths = nil
	}
	for _, m := range c.StringSlice("mount") {
		src, dst, ok := strings.Cut(m, ":")
		if !ok || !strings.HasPrefix(dst, "/") {
			return nil, "", nil, usage(fmt.Errorf("--mount %q is not SRC:DST", m))
		}
		spec.Mounts = append(spec.Mounts, specs.Mount{Source: src, Destination: dst, Type: "bind", Options: []string{"rbind"}})
	}
	for _, a := range c.StringSlice("annotation") {
		key, value, ok := strings.Cut(a, "=")
		if !ok {
			return nil, "", nil, usage(fmt.Errorf("--annotation %q is not K=V", a))
		}
		spec.Annotations[key] = value
	}
	if raw, err = json.Marshal(spec); err != nil {
		return nil, "", nil, err
	}
	job, err = gpuinject.ExamineSpec(spec, loader(c))
	return job, "", raw, err
}

// planLabel is how many columns the labels of a plan take.
const planLabel = 14

func printPlan(w io.Writer, p gpuinject.Plan) {
	o := term.New(w)
	defer printDecisions(o, p)
	if p.Error != "" {
		o.Field("refused:", len("refused: "), term.Red, p.Error)
		return
	}
	if !p.GPU {
		o.Field("no GPU:", len("no GPU: "), term.Yellow, p.Reason)
		if p.Grant != "" {
			o.Field("", 2, term.Plain, p.Grant)
		}
		return
	}
	field := func(label string, s term.Style, format string, args ...any) {
		o.Field(label+":", planLabel, s, fmt.Sprintf(format, args...))
	}
	field("asked", term.Plain, "%s", p.Reason)
	field("grant", term.Plain, "%s", p.Grant)
	field("driver", term.Plain, "%s", cmp.Or(p.DriverVersion, "of "+p.Platform.String()))
	field("capabilities", term.Plain, "%s", strings.Join(p.Capabilities, ","))
	for _, g := range p.GPUs {
		field(fmt.Sprintf("GPU %d", g.Index), term.Green, "%s at %s, minor %d", g.UUID, g.PCI, g.Minor)
	}
	for _, r := range p.Requirements {
		field("requirement", term.Plain, "%s, fulfilled by %s", r.Variable, request.Quote(strings.Join(r.SatisfiedBy, " ")))
	}
	for _, m := range p.MIG {
		field("MIG device", term.Green, "%s", m)
	}
	for _, right := range p.MIGRights {
		field("MIG right", term.Yellow, "%s", right)
	}
	for _, d := range p.Devices {
		field("device", term.Plain, "%s (%d:%d rw)", d.Path, d.Major, d.Minor)
	}
	for _, m := range p.Mounts {
		field("mount", term.Plain, "%s from %s", m.Destination, m.Source)
	}
	for _, l := range p.Links {
		field("link", term.Plain, "%s to %s", l.Path, l.Target)
	}
	field("libraries", term.Plain, "%s", strings.Join(p.Libraries, " "))
	field("binaries", term.Plain, "%s", strings.Join(p.Binaries, " "))
	if p.Proc.Masked {
		field("proc", term.Plain, "masked, shows %s", strings.Join(slices.Concat(p.Proc.GPUs, p.Proc.Capabilities), " "))
	} else {
		field("proc", term.Yellow, "not masked")
	}
	for _, h := range p.RemovedHooks {
		field("hook removed", term.Plain, "%s", h)
	}
	for _, name := range p.Sockets {
		field("socket", term.Plain, "%s", name)
	}
	for _, name := range p.Foreign {
		field("CDI device", term.Plain, "%s", name)
	}
	for _, i := range p.Ignored {
		field("ignored", term.Yellow, "%s", i)
	}
	if p.Audit != "" {
		field("audit", term.Yellow, "%s", p.Audit)
	}
	for _, n := range p.Notes {
		field("note", term.Cyan, "%s", n)
	}
}

// printDecisions prints why. Of a container that is refused they are the decisions
// before the one that it is refused by.
func printDecisions(o *term.Output, p gpuinject.Plan) {
	label := "because:"
	if p.Error != "" {
		label = "before:"
	}
	for _, d := range p.Decisions {
		o.Field(label, planLabel, term.Plain, fmt.Sprintf("%s: %s: %s", d.Subject, d.Decision, d.Reason))
		label = ""
	}
}
