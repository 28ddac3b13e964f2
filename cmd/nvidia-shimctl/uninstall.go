package main

import (
	"context"
	"fmt"

	"github.com/urfave/cli/v3"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/runtimeclass"
)

func uninstallCommand() *cli.Command {
	return &cli.Command{
		Name:  "uninstall",
		Usage: "restore the configuration and remove the programs",
		Flags: append(installFlags(),
			&cli.BoolFlag{Name: "all", Usage: "undo the installation for every daemon"},
			&cli.BoolFlag{Name: "keep-programs", Usage: "leave the programs where they are"},
		),
		Action: func(ctx context.Context, c *cli.Command) error {
			i, err := installer(c)
			if err == nil && runtimeclass.DaemonOf(i.Target).Print != nil {
				err = usage(fmt.Errorf("a %s cluster is removed with its nodes: `%[1]s delete cluster`", i.Target))
			}
			if err != nil {
				return err
			}
			return i.Uninstall(ctx)
		},
	}
}
