package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/urfave/cli/v3"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/runtimeclass"
)

func uninstallCommand() *cli.Command {
	return &cli.Command{
		Name:  "uninstall",
		Usage: "bring the configuration back as it was, and remove the programs",
		Flags: append(installFlags(),
			&cli.BoolFlag{Name: "keep-programs", Usage: "leave the programs where they are"},
		),
		Action: func(ctx context.Context, c *cli.Command) error { return uninstall(ctx, c) },
	}
}

func uninstall(ctx context.Context, c *cli.Command) error {
	target, err := checkTarget(c)
	if err != nil {
		return err
	}
	host := runtimeclass.Host{Root: c.String("root")}
	var plan *runtimeclass.Plan
	switch target {
	case targetContainerd:
		plan, err = runtimeclass.UninstallContainerd(host, c.String("containerd-config"))
	case targetDocker:
		plan, err = runtimeclass.UninstallDocker(host, c.String("docker-config"))
	case targetKind:
		return usage(errors.New("a kind cluster is removed with its nodes: `kind delete cluster`"))
	default:
		plan, err = runtimeclass.UninstallDistribution(host, runtimeclass.Distributions[target])
	}
	if err != nil {
		return err
	}
	more, err := leftExtras(c, host)
	if err != nil {
		return err
	}
	if c.Bool("dry-run") {
		return printOutcome(c, plan, more, outcome{DryRun: true}, "remove")
	}
	if err := plan.Apply(); err != nil {
		return err
	}
	if err := more.apply(); err != nil {
		return err
	}
	if err := printOutcome(c, plan, more, outcome{}, "remove"); err != nil {
		return err
	}
	err = restart(ctx, c, plan)
	if c.Bool("keep-programs") {
		return err
	}
	if err != nil {
		return fmt.Errorf("%w, and uninstall again to remove the programs", err)
	}
	// After the restart: until then the daemon may start the shim.
	stay, err := host.RemoveBinaries(filepath.Clean(c.String("bin-dir")), "/proc")
	for _, p := range stay {
		fmt.Fprintf(c.Root().ErrWriter, "%s stays, because containers run with it: run uninstall again when they are gone\n", p)
	}
	return err
}
