package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v3"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/runtimeclass"
)

// Targets of install and uninstall.
const (
	targetContainerd = "containerd"
	targetKind       = "kind"
	targetDocker     = "docker"
)

var targets = []string{targetContainerd, "k3s", "rke2", targetKind, targetDocker}

// versionTimeout is for a program that only prints its version.
const versionTimeout = 10 * time.Second

// installFlags are common to install and uninstall.
func installFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "target", Value: targetContainerd, Usage: "`WHAT` to register with: " + strings.Join(targets, ", ")},
		&cli.StringFlag{Name: "containerd-config", Value: runtimeclass.DefaultContainerdConfig, Usage: "containerd's configuration `FILE`"},
		&cli.StringFlag{Name: "docker-config", Value: runtimeclass.DefaultDockerConfig, Usage: "Docker's configuration `FILE`"},
		&cli.StringFlag{Name: "bin-dir", Value: runtimeclass.DefaultBinDir, Usage: "`DIR` of the installed programs; keep it, bundles record it"},
		&cli.StringFlag{Name: "root", Value: "/", Usage: "prepare the tree below `DIR` instead of this host"},
		&cli.BoolFlag{Name: "dry-run", Usage: "show what would change, and change nothing"},
		&cli.BoolFlag{Name: "restart", Usage: "restart the daemon afterwards; without it nothing is restarted"},
	}
}

func installCommand() *cli.Command {
	return &cli.Command{
		Name:  "install",
		Usage: "install the programs and register the runtime handler",
		Flags: append(installFlags(),
			&cli.StringFlag{Name: "handler", Value: runtimeclass.DefaultHandler, Usage: "`NAME` of the runtime handler"},
			&cli.BoolFlag{Name: "set-default", Usage: "make it the runtime of containers that name none"},
			&cli.BoolFlag{Name: "replace", Usage: "switch another runtime of that name off until uninstall"},
			&cli.StringFlag{Name: "containerd", Usage: "containerd's `PROGRAM`, asked for its version (default: found in PATH)"},
			&cli.StringFlag{Name: "from", Usage: "`DIR` with the programs to install (default: this program's)"},
			&cli.GenericFlag{Name: "from-toolkit", Value: &optionalFile{}, Usage: "carry the options of NVIDIA's container toolkit over; `[=FILE]` is its configuration (default: where its package or operator has it)"},
			&cli.BoolFlag{Name: "prepare-unit", Usage: "have systemd run nvidia-shimctl prepare at boot"},
		),
		Action: func(ctx context.Context, c *cli.Command) error { return install(ctx, c) },
	}
}

func install(ctx context.Context, c *cli.Command) error {
	target, err := checkTarget(c)
	if err != nil {
		return err
	}
	w := c.Root().Writer
	reg := runtimeclass.Registration{
		Handler: c.String("handler"), BinDir: filepath.Clean(c.String("bin-dir")),
		Default: c.Bool("set-default"), Replace: c.Bool("replace"),
	}
	if err := runtimeclass.ValidHandler(reg.Handler); err != nil {
		return usage(err)
	}
	if target == targetKind {
		text, err := runtimeclass.Kind(reg)
		if err != nil {
			return err
		}
		_, err = io.WriteString(w, text)
		return err
	}
	host := runtimeclass.Host{Root: c.String("root")}
	if target != targetDocker {
		if host.Daemon, err = daemonVersion(ctx, c, target); err != nil {
			return err
		}
	}
	plan, handler, err := installPlan(c, host, target, reg)
	if err != nil {
		return err
	}
	from, err := programsDir(c)
	if err != nil {
		return err
	}
	copies, err := host.Binaries(from, reg.BinDir)
	if err != nil {
		return err
	}
	more, err := newExtras(c, host, reg)
	if err != nil {
		return err
	}
	if c.Bool("dry-run") {
		if err := printInstall(c, plan, more, copies, handler, true); err != nil {
			return err
		}
		return more.refused
	}
	if err := host.InstallBinaries(copies); err != nil {
		return err
	}
	if err := plan.Apply(); err != nil {
		return err
	}
	if err := more.apply(); err != nil {
		return err
	}
	if err := printInstall(c, plan, more, copies, handler, false); err != nil {
		return err
	}
	err = more.start(ctx, c)
	// The daemon runs containers without a GPU too.
	if restarted := restart(ctx, c, plan); restarted != nil {
		return restarted
	}
	return err
}

func installPlan(c *cli.Command, host runtimeclass.Host, target string, reg runtimeclass.Registration) (*runtimeclass.Plan, string, error) {
	switch target {
	case targetContainerd:
		p, err := runtimeclass.InstallContainerd(host, c.String("containerd-config"), reg)
		return p, reg.Handler, err
	case targetDocker:
		p, err := runtimeclass.InstallDocker(host, c.String("docker-config"), reg)
		return p, reg.Handler, err
	}
	return runtimeclass.InstallDistribution(host, runtimeclass.Distributions[target], reg, c.IsSet("handler"))
}

func checkTarget(c *cli.Command) (string, error) {
	target := c.String("target")
	if err := noArguments(c); err != nil {
		return "", err
	}
	if !slices.Contains(targets, target) {
		return "", usage(fmt.Errorf("--target %q is not one of %s", target, strings.Join(targets, ", ")))
	}
	for flag, of := range map[string]string{"containerd-config": targetContainerd, "docker-config": targetDocker} {
		if c.IsSet(flag) && target != of {
			return "", usage(fmt.Errorf("--%s goes with --target %s only", flag, of))
		}
		if !filepath.IsAbs(c.String(flag)) {
			return "", usage(fmt.Errorf("--%s %q is not an absolute path", flag, c.String(flag)))
		}
	}
	if c.Bool("restart") && filepath.Clean(c.String("root")) != "/" {
		return "", usage(errors.New("--restart goes with this host only, not with --root"))
	}
	return target, nil
}

// programsDir is where the programs to install are.
func programsDir(c *cli.Command) (string, error) {
	if dir := c.String("from"); dir != "" {
		return dir, nil
	}
	self, err := os.Executable()
	if err != nil {
		return "", err
	}
	return filepath.Dir(self), nil
}

// daemonVersion asks containerd's program for its version. Where none is found the
// version is unknown, which is a case of its own and no error.
func daemonVersion(ctx context.Context, c *cli.Command, target string) (runtimeclass.Version, error) {
	program := c.String("containerd")
	if program == "" {
		if program = findDaemon(c.String("root"), target); program == "" {
			return runtimeclass.Version{}, nil
		}
	}
	out, err := execute(ctx, program, "--version")
	if err != nil {
		return runtimeclass.Version{}, err
	}
	return runtimeclass.ParseVersion(out)
}

func findDaemon(root, target string) string {
	if d, ok := runtimeclass.Distributions[target]; ok {
		for _, pattern := range d.Programs {
			// The patterns are correct.
			if found, _ := filepath.Glob(filepath.Join(root, pattern)); len(found) > 0 {
				return found[len(found)-1]
			}
		}
		return ""
	}
	for _, dir := range filepath.SplitList(runtimeclass.ServicePath) {
		if p, err := exec.LookPath(filepath.Join(root, dir, "containerd")); err == nil {
			return p
		}
	}
	return ""
}

// execute runs a program of this host and returns what it printed to stdout.
func execute(ctx context.Context, program string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, versionTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.WaitDelay = time.Second
	out, err := cmd.Output()
	if err != nil {
		what := strings.Join(append([]string{program}, args...), " ")
		var exit *exec.ExitError
		if errors.As(err, &exit) && len(exit.Stderr) > 0 {
			return "", fmt.Errorf("%s: %w: %.256q", what, err, exit.Stderr)
		}
		return "", fmt.Errorf("%s: %w", what, err)
	}
	return string(out), nil
}

// outcome is what install and uninstall print as JSON.
type outcome struct {
	DryRun   bool     `json:"dry_run"`
	Handler  string   `json:"handler,omitempty"`
	Programs []string `json:"programs"`
	Changed  bool     `json:"changed"`
	// Files are those besides the daemon's configuration that change.
	Files   []string `json:"files"`
	Diff    string   `json:"diff"`
	Notes   []string `json:"notes"`
	Restart string   `json:"restart"`
	// Toolkit is what became of the options of NVIDIA's toolkit.
	Toolkit *toolkitReport `json:"toolkit,omitempty"`
}

func printInstall(c *cli.Command, plan *runtimeclass.Plan, more *extras, copies []runtimeclass.Copy, handler string, dry bool) error {
	programs := []string{}
	for _, p := range copies {
		if !p.Same {
			programs = append(programs, p.To)
		}
	}
	return printOutcome(c, plan, more, outcome{DryRun: dry, Handler: handler, Programs: programs}, "install")
}

// printOutcome prints the notes and the difference. The difference is on stdout alone
// in a dry run, so that it can be piped to patch.
func printOutcome(c *cli.Command, plan *runtimeclass.Plan, more *extras, o outcome, verb string) error {
	w, notes := c.Root().Writer, c.Root().Writer
	o.Changed, o.Diff = plan.Changed(), plan.Diff()+more.plan.Diff()
	o.Notes = append(append([]string{}, plan.Notes...), more.plan.Notes...)
	o.Files, o.Toolkit = more.plan.Changing(), more.toolkit
	if o.Changed {
		o.Restart = plan.Restart.String()
	}
	if c.Bool("json") {
		return printJSON(w, o)
	}
	if o.DryRun {
		notes = c.Root().ErrWriter
	}
	if err := o.Toolkit.print(notes); err != nil {
		return err
	}
	for _, n := range o.Notes {
		fmt.Fprintln(notes, n)
	}
	for _, p := range o.Programs {
		if o.DryRun {
			fmt.Fprintf(notes, "would %s %s\n", verb, p)
		} else {
			fmt.Fprintf(notes, "%sed %s\n", strings.TrimSuffix(verb, "e"), p)
		}
	}
	fmt.Fprint(w, o.Diff)
	switch {
	case !o.Changed:
		fmt.Fprintln(notes, "the configuration stays as it is")
	case !c.Bool("restart"):
		fmt.Fprintf(notes, "not restarted: run `%s` when it suits; running containers stay\n", o.Restart)
	}
	return nil
}

// systemctl runs it with the operator as reader of its words.
func systemctl(ctx context.Context, c *cli.Command, args ...string) error {
	cmd := exec.CommandContext(ctx, "systemctl", args...)
	cmd.Stdout, cmd.Stderr = c.Root().ErrWriter, c.Root().ErrWriter
	return cmd.Run()
}

// restart makes the daemon read its configuration, if asked to and needed.
func restart(ctx context.Context, c *cli.Command, plan *runtimeclass.Plan) error {
	if !c.Bool("restart") || !plan.Changed() {
		return nil
	}
	units := plan.Restart.Units
	for _, unit := range units {
		if len(units) > 1 {
			if _, err := execute(ctx, "systemctl", "is-active", "--quiet", unit); err != nil {
				continue
			}
		}
		if err := systemctl(ctx, c, plan.Restart.Verb, unit); err != nil {
			// A second run changes nothing, and so restarts nothing.
			return fmt.Errorf("systemctl %[1]s %[2]s: %[3]w: the files are changed and stay so; `journalctl -u %[2]s` says why, then run `systemctl %[1]s %[2]s` by hand",
				plan.Restart.Verb, unit, err)
		}
		return nil
	}
	return fmt.Errorf("none of %s is active: nothing was restarted; the files are changed and count from its next start on", strings.Join(units, ", "))
}
