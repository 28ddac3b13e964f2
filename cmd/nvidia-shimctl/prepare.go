package main

import (
	"context"
	"fmt"

	"github.com/urfave/cli/v3"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/cdispec"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/prepare"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/term"
)

func prepareCommand() *cli.Command {
	return &cli.Command{
		Name:  "prepare",
		Usage: "load the driver's kernel modules and make missing device nodes, at boot or by hand",
		Description: "A correct node is not touched, and a wrong one is only reported, unless --replace is given. " +
			"Mode and owner are those of the driver's parameters. On a host without a GPU it does nothing. " +
			"install --prepare-unit has systemd run it at every boot.",
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "load-modules", Usage: "load missing modules (default: host.load-kernel-modules)"},
			&cli.StringFlag{Name: "imex-channels", Usage: "also make the nodes of these IMEX channels: `LIST` as 0-3,7"},
			&cli.BoolFlag{Name: "replace", Usage: "replace wrong nodes: old numbers, links, modes, owners"},
			&cli.BoolFlag{Name: "cdi", Usage: "also make the file of install --cdi again, if it is there"},
			&cli.BoolFlag{Name: "dry-run", Usage: "show what would be done and change nothing"},
		},
		Action: func(ctx context.Context, c *cli.Command) error {
			o := prepare.Options{Ask: asker(c), Replace: c.Bool("replace"), DryRun: c.Bool("dry-run")}
			if c.IsSet("imex-channels") {
				var err error
				if o.Channels, err = prepare.ParseChannels(c.String("imex-channels")); err != nil {
					return usage(fmt.Errorf("--imex-channels: %w", err))
				}
			}
			cfg, err := loader(c)()
			if err != nil {
				return err
			}
			o.Host, o.LoadModules = cfg.Host, cfg.Host.LoadKernelModules
			if c.IsSet("load-modules") {
				o.LoadModules = c.Bool("load-modules")
			}
			report, err := prepare.Run(ctx, o)
			if err != nil {
				return err
			}
			err = output(c, report, report.Ready, func(o *term.Output) { printPrepared(o, report) })
			if err != nil || o.DryRun || !c.Bool("cdi") {
				return err
			}
			return cdispec.Refresh(cdiFile, planner(c))
		},
	}
}

// preparedStyles are the colours of states on a terminal.
var preparedStyles = map[string]term.Style{
	prepare.Made: term.Green, prepare.Replaced: term.Yellow,
	prepare.Missing: term.Yellow, prepare.Wrong: term.Red, prepare.Failed: term.Red,
}

func printPrepared(o *term.Output, r *prepare.Report) {
	const columns = 15
	line := func(state, name, message, fix string) {
		style := preparedStyles[state]
		if r.DryRun && (state == prepare.Made || state == prepare.Replaced) {
			state = "to be " + state
		}
		if message != "" {
			name += ": " + message
		}
		o.Field(state, columns, style, name)
		if fix != "" {
			o.Field("", columns, term.Plain, "fix: "+fix)
		}
	}
	for _, m := range r.Modules {
		line(m.State, m.Name, m.Message, m.Fix)
	}
	for _, n := range r.Nodes {
		line(n.State, fmt.Sprintf("%s (%d:%d %s)", n.Path, n.Major, n.Minor, n.Mode), n.Message, n.Fix)
	}
	for _, n := range r.Notes {
		o.Field("note", columns, term.Cyan, n)
	}
}
