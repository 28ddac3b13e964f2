// Command nvidia-shimctl is the operator's tool of io.containerd.nvidia.v2: it says
// what this host has for containers, and what a container would get and why, by the
// very code that the shim runs.
//
// Exit status: 0 fine, 1 a problem found or a request refused, 2 wrong usage.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/urfave/cli/v3"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/version"
)

func main() {
	os.Exit(run(context.Background(), os.Args, os.Stdout, os.Stderr))
}

// errProblem ends a command with status 1 after it printed what is wrong.
var errProblem = errors.New("problem")

// newApp is the command line. Each run has one of its own: the library keeps what it
// parsed in it.
func newApp(stdout, stderr io.Writer) *cli.Command {
	app := &cli.Command{
		Name:    "nvidia-shimctl",
		Usage:   "look at GPUs with the eyes of the containerd shim io.containerd.nvidia.v2",
		Version: version.Version + " (" + version.Revision + ")",
		Writer:  stdout, ErrWriter: stderr,
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "config", Usage: "configuration `FILE` of the shim (default: " + config.DefaultPath + ")", Sources: cli.EnvVars(config.EnvFile)},
			&cli.BoolFlag{Name: "json", Usage: "print JSON"},
		},
		Commands: []*cli.Command{
			infoCommand(), statusCommand(), planCommand(), runArgsCommand(),
			checkCommand(), prepareCommand(), installCommand(), uninstallCommand(), manifestCommand(),
			probeCommand(), completionCommand(), completeCommand(), manCommand(),
		},
		ExitErrHandler: func(context.Context, *cli.Command, error) {},
		Action: func(ctx context.Context, c *cli.Command) error {
			if c.Args().Present() {
				return usage(fmt.Errorf("unknown command %q", c.Args().First()))
			}
			return cli.ShowAppHelp(c)
		},
	}
	strict(app)
	return app
}

// strict makes a command and those below it refuse what is wrong usage, and take a
// slice's item as it is written: a device list has commas of its own.
func strict(c *cli.Command) {
	c.OnUsageError = onUsageError
	c.DisableSliceFlagSeparator = true
	for _, sub := range c.Commands {
		strict(sub)
	}
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	err := newApp(stdout, stderr).Run(ctx, args)
	var u *usageError
	switch {
	case err == nil:
		return 0
	case errors.Is(err, errProblem):
		return 1
	case errors.As(err, &u):
		fmt.Fprintf(stderr, "nvidia-shimctl: %v (nvidia-shimctl --help shows how)\n", err)
		return 2
	}
	fmt.Fprintf(stderr, "nvidia-shimctl: %v\n", err)
	return 1
}

// usageError is a command line that makes no sense.
type usageError struct{ error }

func onUsageError(_ context.Context, _ *cli.Command, err error, _ bool) error { return usage(err) }

func usage(err error) error { return &usageError{err} }

// noArguments refuses what is left of a command line behind its flags.
func noArguments(c *cli.Command) error {
	if c.Args().Present() {
		return usage(fmt.Errorf("unexpected argument %q", c.Args().First()))
	}
	return nil
}

// loader reads the configuration that the command line names, or the shim's own.
func loader(c *cli.Command) func() (*config.Config, error) {
	if name := c.String("config"); name != "" {
		return func() (*config.Config, error) { return config.Load(name) }
	}
	return config.FromEnvironment
}

func printJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	return enc.Encode(v)
}
