package main

import (
	"context"

	"github.com/urfave/cli/v3"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/cdispec"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/term"
)

// cdiFile is a variable so that tests can replace it.
var cdiFile = cdispec.Path

func cdiCommand() *cli.Command {
	return &cli.Command{
		Name:        "cdi",
		Usage:       "print a CDI specification of the GPUs",
		Description: "It works under every runtime, for images with glibc, with container.default-capabilities. install --cdi writes it to " + cdispec.Path + ", and prepare --cdi makes it again: run that after a driver upgrade or a change of MIG.",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "output", Usage: "write it to `FILE`, if that is no other program's"},
		},
		Action: func(_ context.Context, c *cli.Command) error {
			if c.Bool("json") {
				if c.IsSet("output") {
					return noJSON("--output")
				}
				spec, err := cdispec.Make(planner(c))
				if err != nil {
					return err
				}
				return term.JSON(c.Root().Writer, spec)
			}
			text, err := cdispec.Text(planner(c))
			if err != nil {
				return err
			}
			if c.IsSet("output") {
				return cdispec.Write(c.String("output"), text)
			}
			_, err = c.Root().Writer.Write(text)
			return err
		},
	}
}
