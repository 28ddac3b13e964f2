package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/urfave/cli/v3"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/procfs"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/runtimeclass"
)

func uninstallCommand() *cli.Command {
	return &cli.Command{
		Name:  "uninstall",
		Usage: "bring the configuration back as it was, and remove the programs",
		Flags: append(installFlags(),
			&cli.BoolFlag{Name: "keep-programs", Usage: "leave the programs where they are"},
		),
		Action: uninstall,
	}
}

func uninstall(ctx context.Context, c *cli.Command) error {
	o, err := installOptions(c)
	if err != nil {
		return err
	}
	if o.Target == kind {
		return usage(errors.New("a kind cluster is removed with its nodes: `kind delete cluster`"))
	}
	host := runtimeclass.Host{Root: c.String("root")}
	plan, err := runtimeclass.Uninstall(host, o)
	if err != nil {
		return err
	}
	if err := carryOut(c, plan, nil); err != nil || c.Bool("dry-run") {
		return err
	}
	if c.Bool("restart") && plan.Changed() {
		err = plan.Restart.Run(ctx, c.Root().ErrWriter)
	}
	if c.Bool("keep-programs") {
		return err
	}
	// Before the restart the daemon may start the shim.
	if err != nil {
		return fmt.Errorf("%w, and uninstall again to remove the programs", err)
	}
	stay, err := host.RemovePrograms(o.Registration.BinDir, procfs.Host)
	for _, p := range stay {
		fmt.Fprintf(c.Root().ErrWriter, "%s stays, because containers run with it: run uninstall again when they are gone\n", p)
	}
	return err
}
