package main

import (
	"context"

	"github.com/urfave/cli/v3"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/hostinfo"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/probe"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/term"
)

func infoCommand() *cli.Command {
	return &cli.Command{
		Name:  "info",
		Usage: "show the driver, the GPUs and what is wrong with them",
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "files", Usage: "list the driver files, too: with which capabilities they are given, or why not"},
		},
		Action: func(_ context.Context, c *cli.Command) error {
			cfg, err := loader(c)()
			if err != nil {
				return err
			}
			info, err := hostinfo.Read(cfg.Host, probe.ForContainer(asker(c)))
			if err != nil {
				return err
			}
			return output(c, info, info.Unusable == "", func(o *term.Output) {
				info.Print(o)
				if c.Bool("files") {
					info.PrintFiles(o)
				}
			})
		},
	}
}
