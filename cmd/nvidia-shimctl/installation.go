package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/urfave/cli/v3"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/toolkit"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/runtimeclass"
)

// kind is the target that is no daemon of this host.
const kind = "kind"

var targets = []string{runtimeclass.Containerd, "k3s", "rke2", kind, runtimeclass.Docker}

func installFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "target", Value: runtimeclass.Containerd, Usage: "`WHAT` to register with: " + strings.Join(targets, ", ")},
		&cli.StringFlag{Name: "containerd-config", Value: runtimeclass.DefaultContainerdConfig, Usage: "containerd's configuration `FILE`"},
		&cli.StringFlag{Name: "docker-config", Value: runtimeclass.DefaultDockerConfig, Usage: "Docker's configuration `FILE`"},
		&cli.StringFlag{Name: "bin-dir", Value: runtimeclass.DefaultBinDir, Usage: "`DIR` of the installed programs; keep it, bundles record it"},
		&cli.StringFlag{Name: "root", Value: "/", Usage: "prepare the tree below `DIR` instead of this host"},
		&cli.BoolFlag{Name: "dry-run", Usage: "show what would change, and change nothing"},
		&cli.BoolFlag{Name: "restart", Usage: "restart the daemon afterwards; without it nothing is restarted"},
	}
}

func installOptions(c *cli.Command) (runtimeclass.Options, error) {
	o := runtimeclass.Options{
		Target: c.String("target"), HandlerNamed: c.IsSet("handler"), Programs: c.String("from"),
		PrepareUnit: c.Bool("prepare-unit"), ShimConfig: config.DefaultPath,
		Registration: runtimeclass.Registration{
			Handler: c.String("handler"), BinDir: filepath.Clean(c.String("bin-dir")),
			Default: c.Bool("set-default"), Replace: c.Bool("replace"),
		},
	}
	if !slices.Contains(targets, o.Target) {
		return o, usage(fmt.Errorf("--target %q is not one of %s", o.Target, strings.Join(targets, ", ")))
	}
	for _, target := range []string{runtimeclass.Containerd, runtimeclass.Docker} {
		flag := target + "-config"
		if target == o.Target {
			o.ConfigFile = c.String(flag)
		} else if c.IsSet(flag) {
			return o, usage(fmt.Errorf("--%s goes with --target %s only", flag, target))
		}
		if !filepath.IsAbs(c.String(flag)) {
			return o, usage(fmt.Errorf("--%s %q is not an absolute path", flag, c.String(flag)))
		}
	}
	if c.Bool("restart") && filepath.Clean(c.String("root")) != "/" {
		return o, usage(errors.New("--restart goes with this host only, not with --root"))
	}
	if name := c.String("config"); filepath.IsAbs(name) {
		o.ShimConfig = name
	}
	if o.Programs == "" {
		self, err := os.Executable()
		if err != nil {
			return o, err
		}
		o.Programs = filepath.Dir(self)
	}
	return o, nil
}

// installation is the JSON output of install and uninstall.
type installation struct {
	DryRun  bool   `json:"dry_run"`
	Handler string `json:"handler,omitempty"`
	// Programs are the programs that are installed.
	Programs []string `json:"programs"`
	Changed  bool     `json:"changed"`
	// Files are the changed files besides the daemon's configuration.
	Files   []string        `json:"files"`
	Diff    string          `json:"diff"`
	Notes   []string        `json:"notes"`
	Restart string          `json:"restart"`
	Toolkit *toolkit.Report `json:"toolkit,omitempty"`
}

// carryOut makes the changes of a plan, unless this is a dry run, and prints the notes and the
// difference. In a dry run the difference is alone on stdout, so that it can be piped to patch.
func carryOut(c *cli.Command, plan runtimeclass.Plan, report *toolkit.Report) error {
	if !c.Bool("dry-run") {
		if err := plan.Apply(); err != nil {
			return err
		}
	}
	w, notes := c.Root().Writer, c.Root().Writer
	o := installation{
		DryRun: c.Bool("dry-run"), Handler: plan.Handler, Programs: plan.Changing(runtimeclass.Program), Changed: plan.Changed(),
		Files: plan.Changing(runtimeclass.OtherFile), Diff: plan.Diff(), Notes: append([]string{}, plan.Notes...), Toolkit: report,
	}
	if o.Changed {
		o.Restart = plan.Restart.String()
	}
	if c.Bool("json") {
		return printJSON(w, o)
	}
	did := "installed"
	if o.DryRun {
		notes, did = c.Root().ErrWriter, "would install"
	}
	if report != nil {
		printToolkit(notes, report)
	}
	for _, n := range o.Notes {
		fmt.Fprintln(notes, n)
	}
	for _, p := range o.Programs {
		fmt.Fprintln(notes, did, p)
	}
	fmt.Fprint(w, o.Diff)
	switch {
	case !o.Changed:
		fmt.Fprintln(notes, "the configuration stays as it is")
	case !c.Bool("restart"):
		fmt.Fprintf(notes, "not restarted: run `%s` when it suits; %s\n", o.Restart, plan.Restart.Containers())
	}
	return nil
}
