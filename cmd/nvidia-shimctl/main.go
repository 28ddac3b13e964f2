package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/urfave/cli/v3"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/term"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/version"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/runtimeclass"
)

func main() {
	if filepath.Base(os.Args[0]) == runtimeclass.CDIHookName {
		fmt.Fprintf(os.Stderr, "%s: %v\n", runtimeclass.CDIHookName, becomeCDIHook(os.Args, os.Environ()))
		os.Exit(1)
	}
	os.Exit(run(context.Background(), os.Args, os.Stdout, os.Stderr))
}

// errProblem ends a command with status 1 after it printed what is wrong.
var errProblem = errors.New("problem")

// newApp makes the command line. Each run needs its own: the library stores what it parsed in it.
func newApp(stdout, stderr io.Writer) *cli.Command {
	app := &cli.Command{
		Name:    "nvidia-shimctl",
		Usage:   "operate the containerd shim io.containerd.nvidia.v2: its GPUs, plans and installation",
		Version: version.Version + " (" + version.Revision + ")",
		Writer:  stdout, ErrWriter: stderr,
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "config", Usage: "configuration `FILE` of the shim (default: " + config.DefaultPath + ")", Sources: cli.EnvVars(config.EnvFile)},
			&cli.BoolFlag{Name: "json", Usage: "print JSON"},
		},
		Commands: []*cli.Command{
			infoCommand(), statusCommand(), serveCommand(), planCommand(), runArgsCommand(), suspendCommand(), resumeCommand(), cdiCommand(),
			checkCommand(), prepareCommand(), installCommand(), uninstallCommand(), nodeCommand(), manifestCommand(),
			probeCommand(), bundleCommand(), manCommand(), versionCommand(),
		},
		EnableShellCompletion: true, ConfigureShellCompletionCommand: configureCompletion,
		ExitErrHandler: func(context.Context, *cli.Command, error) {},
		Action: func(_ context.Context, c *cli.Command) error {
			if c.Args().Present() {
				name := c.Args().First()
				return usage(fmt.Errorf("unknown command %.256q: did you mean %s?", name, cli.SuggestCommand(c.VisibleCommands(), name)))
			}
			return cli.ShowAppHelp(c)
		},
	}
	for _, c := range app.Commands {
		if list := examples[c.Name]; len(list) > 0 {
			c.Description = strings.TrimSpace(c.Description + "\n\nExamples:\n\n    " + strings.Join(list, "\n    "))
		}
		action := c.Action
		// Not by Before, which completion runs too.
		c.Action = func(ctx context.Context, c *cli.Command) error {
			if c.Args().Present() && c.ArgsUsage == "" {
				return usage(fmt.Errorf("unexpected argument %.256q", c.Args().First()))
			}
			if slices.Contains([]string{"serve", "suspend", "resume", "node", "man"}, c.Name) && c.Bool("json") {
				return noJSON(c.Name)
			}
			return action(ctx, c)
		}
	}
	for _, c := range append(app.Commands, app) {
		c.OnUsageError = func(_ context.Context, c *cli.Command, err error, _ bool) error {
			if _, name, ok := strings.Cut(err.Error(), "not defined: -"); ok {
				err = fmt.Errorf("%w: did you mean %s?", err, cli.SuggestFlag(c.VisibleFlags(), strings.TrimLeft(name, "-"), true))
			}
			return usage(err)
		}
		// A device list has commas of its own.
		c.DisableSliceFlagSeparator = true
	}
	return app
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	err := newApp(stdout, stderr).Run(ctx, args)
	if errors.Is(err, fs.ErrPermission) && os.Geteuid() != 0 {
		err = fmt.Errorf("not run as root: %w", err)
	}
	var u *usageError
	switch {
	case err == nil:
		return 0
	case errors.Is(err, errProblem):
		return 1
	case errors.As(err, &u):
		fmt.Fprintf(stderr, "nvidia-shimctl: %v (see nvidia-shimctl --help)\n", err)
		return 2
	}
	fmt.Fprintf(stderr, "nvidia-shimctl: %v\n", err)
	return 1
}

func versionCommand() *cli.Command {
	return &cli.Command{
		Name:  "version",
		Usage: "show the version of this program",
		Action: func(_ context.Context, c *cli.Command) error {
			v := map[string]string{"version": version.Version, "revision": version.Revision}
			return output(c, v, true, func(o *term.Output) { o.Line(term.Plain, c.Root().Version) })
		},
	}
}

// usageError is the error of a wrong command line.
type usageError struct{ error }

func usage(err error) error { return &usageError{err} }

// noJSON is the error of --json where no data are printed.
func noJSON(with string) error { return usage(fmt.Errorf("--json does not go with %s", with)) }

// loader reads the configuration that the command line names, or the shim's own. The tool changes
// nothing of what the shim keeps.
func loader(c *cli.Command) func() (*config.Config, error) {
	return func() (*config.Config, error) {
		name := c.String("config")
		if name == "" && os.Getenv(config.EnvFile) != "" {
			return nil, usage(errors.New("--config is empty"))
		}
		cfg, err := config.Find(name)
		if err == nil {
			cfg.Host.ReadOnlyState = true
		}
		return cfg, err
	}
}

// output prints a value as JSON with --json, or as text prints it. It returns errProblem unless ok.
func output(c *cli.Command, v any, ok bool, text func(*term.Output)) error {
	if !c.Bool("json") {
		text(term.New(c.Root().Writer))
	} else if err := printJSON(c.Root().Writer, v); err != nil {
		return err
	}
	if !ok {
		return errProblem
	}
	return nil
}

func printJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	return enc.Encode(v)
}
