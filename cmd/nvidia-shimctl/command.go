package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/urfave/cli/v3"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/cmdline"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/term"
)

// This file contains code that the commands share.

// errProblem ends a command with status 1 after it has printed the problem.
var errProblem = errors.New("problem")

// guard makes a command refuse a wrong command line before it does anything, and adds examples to
// its help.
func guard(c *cli.Command) {
	addExamples(c)
	c.OnUsageError = wrongFlag
	// A device list contains commas.
	c.DisableSliceFlagSeparator = true
	action := c.Action
	// Not in Before, which completion runs too.
	c.Action = func(ctx context.Context, c *cli.Command) error {
		switch {
		case c.Args().Present() && c.ArgsUsage == "":
			return usage(fmt.Errorf("unexpected argument %.256q", c.Args().First()))
		case slices.Contains([]string{"serve", "suspend", "resume", "limit", "node", "man", "help"}, c.Name) && c.Bool("json"):
			return noJSON(c.Name)
		case c.String("config") == "" && os.Getenv(config.EnvFile) != "":
			return usage(errors.New("--config is empty"))
		}
		return action(ctx, c)
	}
}

func wrongFlag(_ context.Context, c *cli.Command, err error, _ bool) error {
	text, _, _ := strings.Cut(err.Error(), ": strconv.") // the rest names a Go function
	if _, name, ok := strings.Cut(text, "not defined: -"); ok {
		name = strings.TrimLeft(name, "-")
		// The library suggests the nearest flag, however far it is.
		if near := cli.SuggestFlag(c.VisibleFlags(), name, true); name != "" && strings.HasPrefix(near, "--"+name[:1]) {
			text += ": did you mean " + near + "?"
		}
	}
	return usage(errors.New(text))
}

func unknownCommand(c *cli.Command, name string) error {
	return usage(fmt.Errorf("unknown command %.256q: did you mean %s?", name, cli.SuggestCommand(c.Root().VisibleCommands(), name)))
}

// usage returns the error for a wrong command line.
func usage(err error) error { return cmdline.Errorf("%v", err) }

// noJSON returns the error for --json with a command or flag that prints no data.
func noJSON(with string) error { return usage(fmt.Errorf("--json cannot be combined with %s", with)) }

// loader returns a function that loads the configuration named on the command line, or the shim's
// own. The state is read-only: the tool must not change what the shim keeps.
func loader(c *cli.Command) func() (*config.Config, error) {
	return func() (*config.Config, error) {
		cfg, err := config.Find(c.String("config"))
		if err == nil {
			cfg.Host.ReadOnlyState = true
		}
		return cfg, err
	}
}

// output prints v as JSON with --json, and otherwise calls text. It returns errProblem unless ok.
func output(c *cli.Command, v any, ok bool, text func(*term.Output)) error {
	if !c.Bool("json") {
		text(term.New(c.Root().Writer))
	} else if err := term.JSON(c.Root().Writer, v); err != nil {
		return err
	}
	if !ok {
		return errProblem
	}
	return nil
}

func podFlag(c *cli.Command) (namespace, name string, err error) {
	namespace, name, ok := strings.Cut(c.String("pod"), "/")
	if !ok || namespace == "" || name == "" {
		return "", "", usage(fmt.Errorf("--pod %.256q is not NAMESPACE/NAME", c.String("pod")))
	}
	return namespace, name, nil
}
