package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/urfave/cli/v3"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/cdispec"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/procfs"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/runtimeclass"
)

func installCommand() *cli.Command {
	return &cli.Command{
		Name:  "install",
		Usage: "install the programs and register the runtime handler",
		Flags: append(installFlags(),
			&cli.StringFlag{Name: "handler", Value: runtimeclass.DefaultHandler, Usage: "`NAME` of the runtime handler"},
			&cli.BoolFlag{Name: "set-default", Usage: "make it the runtime of containers that name none"},
			&cli.BoolFlag{Name: "replace", Usage: "switch off another runtime of that name until uninstall"},
			&cli.StringFlag{Name: "containerd", Usage: "containerd's `PROGRAM`, asked for its version (default: found in PATH)"},
			&cli.StringFlag{Name: "from", Usage: "`DIR` with the programs to install (default: this program's)"},
			&cli.BoolFlag{Name: "from-toolkit", Usage: "carry over the options of NVIDIA's container toolkit, from the configuration of its package or operator"},
			&cli.StringFlag{Name: "toolkit-config", Usage: "carry them over from this configuration `FILE`"},
			&cli.BoolFlag{Name: "prepare-unit", Usage: "have systemd run nvidia-shimctl prepare at boot"},
			&cli.BoolFlag{Name: "cdi", Usage: "write a CDI specification of the GPUs to " + cdispec.Path},
		),
		Action: install,
	}
}

func install(ctx context.Context, c *cli.Command) error {
	o, err := installOptions(c)
	if err != nil {
		return err
	}
	if err := o.Registration.Validate(); err != nil {
		return usage(err)
	}
	if o.Target == kind {
		_, err = io.WriteString(c.Root().Writer, runtimeclass.KindCluster(o.Registration))
		return err
	}
	host := runtimeclass.Host{Root: c.String("root")}
	if host.Daemon, err = runtimeclass.DaemonVersion(ctx, host.Root, o.Target, c.String("containerd")); err != nil {
		return err
	}
	report, err := fromToolkit(c, o.ShimConfig)
	if err != nil {
		return err
	}
	if report != nil {
		o.WriteShimConfig, o.ShimSettings = true, report.Text
	}
	plan, err := runtimeclass.Install(host, o)
	if err == nil {
		err = addCDI(c, &plan)
	}
	if err != nil {
		return err
	}
	if err := carryOut(c, plan, report); err != nil || c.Bool("dry-run") || !c.Bool("restart") {
		return err
	}
	var started error
	if o.PrepareUnit {
		started = runtimeclass.StartUnit(ctx, c.Root().ErrWriter)
	}
	// The daemon runs containers without a GPU too.
	if plan.Changed() {
		if err := plan.Restart.Run(ctx, c.Root().ErrWriter); err != nil {
			return err
		}
	}
	return started
}

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
	removeCDI(c, &plan)
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
