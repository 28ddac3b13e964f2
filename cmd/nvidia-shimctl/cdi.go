package main

import (
	"context"
	"errors"

	"github.com/urfave/cli/v3"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/cdispec"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/bundle"
)

func cdiCommand() *cli.Command {
	return &cli.Command{
		Name:  "cdi",
		Usage: "what CDI specifications of this host say of other vendors' devices",
		Flags: []cli.Flag{
			&cli.StringSliceFlag{Name: "dir", Usage: "directory `DIR` of specifications; may be repeated"},
			&cli.StringSliceFlag{Name: "device", Usage: "CDI name `VENDOR/CLASS=NAME`; may be repeated"},
			&cli.Uint32Flag{Name: "uid", Usage: "user `ID` of the container's process"},
			&cli.Uint32Flag{Name: "gid", Usage: "group `ID` of the container's process"},
			&cli.BoolFlag{Name: "user-namespace", Usage: "the container has a user namespace"},
		},
		Action: func(_ context.Context, c *cli.Command) error {
			if len(c.StringSlice("dir")) == 0 || len(c.StringSlice("device")) == 0 {
				return usage(errors.New("--dir and --device say what is asked"))
			}
			edits, err := cdispec.Find(bundle.CDIRequest{
				Dirs: c.StringSlice("dir"), Names: c.StringSlice("device"),
				UID: c.Uint32("uid"), GID: c.Uint32("gid"), UserNamespace: c.Bool("user-namespace"),
			})
			if err != nil {
				return err
			}
			return printJSON(c.Root().Writer, edits)
		},
	}
}
