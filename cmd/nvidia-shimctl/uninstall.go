package main

import (
	"context"
	"errors"

	"github.com/urfave/cli/v3"
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
			if err == nil && i.Target == kind {
				err = usage(errors.New("a kind cluster is removed with its nodes: `kind delete cluster`"))
			}
			if err != nil {
				return err
			}
			return i.Uninstall(ctx)
		},
	}
}
