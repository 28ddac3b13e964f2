package main

import (
	"context"

	"github.com/urfave/cli/v3"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/term"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/version"
)

func versionCommand() *cli.Command {
	return &cli.Command{
		Name:  "version",
		Usage: "show the version of this program",
		Action: func(_ context.Context, c *cli.Command) error {
			return output(c, map[string]string{"version": version.Version, "revision": version.Revision}, func(o *term.Output) {
				o.Line(term.Plain, c.Root().Version)
			})
		},
	}
}
