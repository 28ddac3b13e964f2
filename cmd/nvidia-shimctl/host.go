package main

import (
	"context"
	"errors"
	"path/filepath"

	"github.com/urfave/cli/v3"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/node"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/version"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/runtimeclass"
)

// hostFlags are those of commands that run in a privileged pod of a node, too.
func hostFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "host-root", Usage: "`DIR` with the host's root, in a privileged pod with hostPID"},
		&cli.StringFlag{Name: "bin-dir", Value: runtimeclass.DefaultBinDir, Usage: "`DIR` of the host with the installed programs; only with --host-root"},
	}
}

// inHost makes a command with hostFlags enter the host first.
func inHost(action cli.ActionFunc) cli.ActionFunc {
	return func(ctx context.Context, c *cli.Command) error {
		if err := enterHost(c); err != nil {
			return err
		}
		return action(ctx, c)
	}
}

// enterHost makes the host's root that of this process. The image of a pod has no C library, so the
// installed program asks NVML.
func enterHost(c *cli.Command) error {
	root := c.String("host-root")
	if root == "" {
		if c.IsSet("bin-dir") {
			return usage(errors.New("--bin-dir goes with --host-root only"))
		}
		return nil
	}
	if _, _, err := node.EnterHost(root); err != nil {
		return err
	}
	askingProgram = filepath.Join(c.String("bin-dir"), version.Ctl)
	return nil
}
