package main

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/urfave/cli/v3"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/term"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/toolkit"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/runtimeclass"
)

// kind is the target that is no daemon of this host.
const kind = "kind"

var targets = []string{runtimeclass.Containerd, "k3s", "rke2", kind, runtimeclass.Docker}

// daemonFlags say what to install for, and where.
func daemonFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "target", Aliases: []string{"runtime"}, Usage: "`WHAT` to register with: " + strings.Join(targets, ", ") + " (default: what is there)"},
		&cli.StringFlag{Name: "containerd-config", Value: runtimeclass.DefaultContainerdConfig, Usage: "containerd's configuration `FILE`"},
		&cli.StringFlag{Name: "docker-config", Value: runtimeclass.DefaultDockerConfig, Usage: "Docker's configuration `FILE`"},
		&cli.StringFlag{Name: "bin-dir", Value: runtimeclass.DefaultBinDir, Usage: "`DIR` of the installed programs; keep it, bundles record it"},
	}
}

func handlerFlag() cli.Flag {
	return &cli.StringFlag{Name: "handler", Value: runtimeclass.DefaultHandler, Usage: "`NAME` of the runtime handler"}
}

func replaceFlag() cli.Flag {
	return &cli.BoolFlag{Name: "replace", Usage: "override another runtime of that name; uninstall restores it"}
}

func installFlags() []cli.Flag {
	return append(daemonFlags(),
		&cli.StringFlag{Name: "root", Value: "/", Usage: "prepare the tree below `DIR` instead of this host"},
		&cli.BoolFlag{Name: "dry-run", Usage: "show what would change, and change nothing"},
		&cli.BoolFlag{Name: "restart", Usage: "restart the daemon afterwards; without it nothing is restarted"},
	)
}

func installOptions(c *cli.Command) (runtimeclass.Options, error) {
	o := runtimeclass.Options{
		Target: c.String("target"), HandlerNamed: c.IsSet("handler"), Programs: c.String("from"),
		DropDefault: c.IsSet("set-default") && !c.Bool("set-default"),
		PrepareUnit: c.Bool("prepare-unit"), GPUsFlag: c.Bool("gpus-flag"), Arch: c.String("arch"), ShimConfig: config.DefaultPath,
		Registration: runtimeclass.Registration{
			Handler: c.String("handler"), BinDir: filepath.Clean(c.String("bin-dir")),
			Default: c.Bool("set-default"), Replace: c.Bool("replace"),
		},
	}
	if c.IsSet("docker-config") {
		o.Target = cmp.Or(o.Target, runtimeclass.Docker)
	}
	if o.Target = cmp.Or(o.Target, runtimeclass.Containerd); !slices.Contains(targets, o.Target) {
		return o, usage(fmt.Errorf("--target %q is not one of %s", o.Target, strings.Join(targets, ", ")))
	}
	if o.Target == runtimeclass.Docker && c.IsSet("containerd") {
		return o, usage(errors.New("--containerd does not go with --target docker"))
	}
	o.ConfigFile = configFile(c, o.Target)
	for _, target := range []string{runtimeclass.Containerd, runtimeclass.Docker} {
		flag := target + "-config"
		if target != o.Target && c.IsSet(flag) {
			return o, usage(fmt.Errorf("--%s goes with --target %s only", flag, target))
		}
		if !filepath.IsAbs(c.String(flag)) {
			return o, usage(fmt.Errorf("--%s %q is not an absolute path", flag, c.String(flag)))
		}
	}
	root := cmp.Or(c.String("root"), "/") // node has no such flag
	if st, err := os.Stat(root); !filepath.IsAbs(root) || err != nil || !st.IsDir() {
		return o, usage(fmt.Errorf("--root %q is not the absolute path of a directory", root))
	}
	if o.Arch != "" && o.Arch != "amd64" && o.Arch != "arm64" {
		return o, usage(fmt.Errorf("--arch %q is not amd64 or arm64", o.Arch))
	}
	if c.IsSet("containerd") && filepath.Clean(root) != "/" {
		return o, usage(errors.New("--containerd goes with this host only: with --root say --containerd-version"))
	}
	if c.Bool("restart") && filepath.Clean(root) != "/" {
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
	if o.Programs == runtimeclass.PackageBinDir && !c.IsSet("bin-dir") && filepath.Clean(root) == "/" {
		o.Registration.BinDir = o.Programs
	}
	return o, nil
}

// configFile is the configuration of a target; "" for those that have several.
func configFile(c *cli.Command, target string) string {
	if target != runtimeclass.Containerd && target != runtimeclass.Docker {
		return ""
	}
	return c.String(target + "-config")
}

// installation is the JSON output of install and uninstall.
type installation struct {
	DryRun  bool   `json:"dry_run"`
	Handler string `json:"handler,omitempty"`
	// Changed is whether the daemon's configuration changes, or what else it reads when it starts.
	Changed bool `json:"changed"`
	// Written and Removed are all files that change.
	Written []string        `json:"written"`
	Removed []string        `json:"removed"`
	Diff    string          `json:"diff"`
	Notes   []string        `json:"notes"`
	Restart string          `json:"restart"`
	Toolkit *toolkit.Report `json:"toolkit,omitempty"`
}

// carryOut makes the changes of a plan, unless this is a dry run, and prints the notes and the
// difference. patch(1) passes over the notes.
func carryOut(c *cli.Command, plan runtimeclass.Plan, report *toolkit.Report) error {
	if !c.Bool("dry-run") {
		if err := plan.Apply(); err != nil {
			return err
		}
	}
	w := c.Root().Writer
	o := installation{
		DryRun: c.Bool("dry-run"), Handler: plan.Handler, Changed: plan.Changed(),
		Written: plan.Written(), Removed: plan.Removed(), Diff: plan.Diff(), Notes: append([]string{}, plan.Notes...), Toolkit: report,
	}
	if o.Changed {
		o.Restart = plan.Restart.String()
	}
	if c.Bool("json") {
		return printJSON(w, o)
	}
	would := ""
	if o.DryRun {
		would = "would "
	}
	if report != nil {
		report.Print(term.New(w))
	}
	for _, n := range o.Notes {
		term.New(w).Field("", 0, term.Plain, n)
	}
	for _, p := range o.Written {
		fmt.Fprintln(w, would+"write", p)
	}
	for _, p := range o.Removed {
		fmt.Fprintln(w, would+"remove", p)
	}
	fmt.Fprint(w, o.Diff)
	switch {
	case !o.Changed:
		fmt.Fprintln(w, "the configuration stays as it is")
	case o.Restart == "":
		fmt.Fprintln(w, "nothing has to be restarted: the daemon has not been started yet")
	case !c.Bool("restart"):
		term.New(w).Field("", 0, term.Plain, fmt.Sprintf("not restarted: run `%s` when it suits; %s", o.Restart, plan.Restart.Containers()))
	}
	return nil
}
