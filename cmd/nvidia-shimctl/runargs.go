package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/urfave/cli/v3"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/request"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/runargs"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/term"
)

func runArgsCommand() *cli.Command {
	return &cli.Command{
		Name:  "run-args",
		Usage: "print the flags that give a container the same GPUs without this shim",
		Description: "Each flag is on a line of its own, for a command substitution. " +
			"They come from the plan of the shim; the standard error says what such flags cannot do.",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "for", Usage: "`ENGINE` that the flags are for: " + strings.Join(runargs.Engines, ", ")},
			&cli.StringFlag{Name: "devices", Value: request.All, Usage: "`LIST` of GPUs, as in NVIDIA_VISIBLE_DEVICES"},
			&cli.StringFlag{Name: "capabilities", Usage: "`LIST` of driver capabilities, as in NVIDIA_DRIVER_CAPABILITIES"},
			&cli.StringSliceFlag{Name: "env", Aliases: []string{"e"}, Usage: "further environment variable `K=V` of the container, as NVIDIA_IMEX_CHANNELS=0; may be repeated"},
		},
		Action: func(_ context.Context, c *cli.Command) error {
			env := []string{request.EnvVisibleDevices + "=" + c.String("devices")}
			if c.IsSet("capabilities") {
				env = append(env, request.EnvCapabilities+"="+c.String("capabilities"))
			}
			more, err := envFlag(c)
			if err != nil {
				return err
			}
			r, err := runargs.Make(planner(c), c.String("for"), append(env, more...))
			if err != nil {
				return err
			}
			if c.Bool("json") {
				return term.JSON(c.Root().Writer, r)
			}
			for _, a := range r.Args {
				fmt.Fprintln(c.Root().Writer, a)
			}
			limits := term.New(c.Root().ErrWriter)
			for _, l := range r.Limits {
				limits.Field("limit:", 7, term.Yellow, l)
			}
			return nil
		},
	}
}
