package main

import (
	"context"
	"fmt"

	"github.com/urfave/cli/v3"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/version"
)

func versionCommand() *cli.Command {
	return &cli.Command{
		Name:  "version",
		Usage: "show the version of this program",
		Action: func(_ context.Context, c *cli.Command) error {
			if c.Bool("json") {
				return printJSON(c.Root().Writer, map[string]string{"version": version.Version, "revision": version.Revision})
			}
			_, err := fmt.Fprintln(c.Root().Writer, c.Root().Version)
			return err
		},
	}
}
