package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/urfave/cli/v3"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/cmdline"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/node"
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

// newApp makes the command line. Each run needs its own: the library stores parsed values in it.
func newApp(stdout, stderr io.Writer) *cli.Command {
	app := &cli.Command{
		Name:    version.Ctl,
		Usage:   "operate the containerd shim io.containerd.nvidia.v2: its GPUs, plans and installation",
		Version: version.Version + " (" + version.Revision + ")",
		Writer:  stdout, ErrWriter: stderr,
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "config", Usage: "configuration `FILE` of the shim (default: " + config.DefaultPath + ")", Sources: cli.EnvVars(config.EnvFile)},
			&cli.BoolFlag{Name: "json", Usage: "print JSON"},
		},
		Commands: []*cli.Command{
			infoCommand(), statusCommand(), serveCommand(), planCommand(), runArgsCommand(), suspendCommand(), resumeCommand(), limitCommand(), cdiCommand(),
			checkCommand(), prepareCommand(), installCommand(), uninstallCommand(), nodeCommand(), manifestCommand(),
			probeCommand(), bundleCommand(run), manCommand(newApp), versionCommand(), helpCommand(),
		},
		HideHelpCommand:       true,
		EnableShellCompletion: true, ConfigureShellCompletionCommand: configureCompletion,
		ExitErrHandler: func(context.Context, *cli.Command, error) {},
		Action: func(_ context.Context, c *cli.Command) error {
			if c.Args().Present() {
				return unknownCommand(c, c.Args().First())
			}
			return cli.ShowAppHelp(c)
		},
	}
	for _, c := range app.Commands {
		guard(c)
	}
	addExamples(app)
	app.OnUsageError, app.DisableSliceFlagSeparator = wrongFlag, true
	return app
}

// helpCommand replaces the library's help command, which ignores further arguments.
func helpCommand() *cli.Command {
	return &cli.Command{
		Name:      "help",
		Usage:     "show the commands, or the flags of one",
		ArgsUsage: "[COMMAND]",
		Action: func(ctx context.Context, c *cli.Command) error {
			name := c.Args().First()
			switch {
			case c.Args().Len() > 1:
				return usage(fmt.Errorf("unexpected argument %.256q", c.Args().Get(1)))
			case name == "":
				return cli.ShowAppHelp(c.Root())
			case c.Root().Command(name) == nil:
				return unknownCommand(c, name)
			}
			return cli.ShowCommandHelp(ctx, c.Root(), name)
		},
	}
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	err := newApp(stdout, stderr).Run(ctx, args)
	if errors.Is(err, fs.ErrPermission) && os.Geteuid() != 0 {
		err = fmt.Errorf("not run as root: %w", err)
	}
	if err != nil && strings.HasPrefix(err.Error(), "No help topic") { // --help with an argument
		err = usage(err)
	}
	switch {
	case err == nil:
		return 0
	case errors.Is(err, errProblem), errors.Is(err, node.ErrProblem):
		return 1
	case errors.As(err, new(cmdline.Error)):
		fmt.Fprintf(stderr, "nvidia-shimctl: %s (see nvidia-shimctl --help)\n", cmdline.Plain(err))
		return 2
	}
	fmt.Fprintf(stderr, "nvidia-shimctl: %s\n", cmdline.Plain(err))
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
