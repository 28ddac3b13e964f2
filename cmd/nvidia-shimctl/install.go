package main

import (
	"context"
	"errors"
	"io"

	"github.com/urfave/cli/v3"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/cdispec"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/install"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/runtimeclass"
)

func installCommand() *cli.Command {
	return &cli.Command{
		Name:  "install",
		Usage: "install the programs and register the runtime handler",
		Flags: append(installFlags(), handlerFlag(),
			setDefaultFlag(), replaceFlag(),
			&cli.StringFlag{Name: "containerd", Usage: "containerd's `PROGRAM`, asked for its version (default: found in PATH)"},
			&cli.StringFlag{Name: "containerd-version", Usage: "containerd's `VERSION`, such as 2.1.4, instead of asking it"},
			&cli.StringFlag{Name: "docker-version", Usage: "dockerd's `VERSION`, such as 29.0.1, instead of asking it"},
			&cli.StringFlag{Name: "arch", Usage: "`ARCH` of the tree, amd64 or arm64 (default: that of its /bin/sh)"},
			&cli.StringFlag{Name: "from", Usage: "`DIR` with the programs to install (default: this program's)"},
			fromToolkitFlag(),
			&cli.StringFlag{Name: "toolkit-config", Usage: "carry them over from this configuration `FILE`"},
			&cli.BoolFlag{Name: "prepare-unit", Usage: "have systemd run nvidia-shimctl prepare at boot"},
			&cli.BoolFlag{Name: "cdi", Usage: "write a CDI specification of the GPUs to " + cdispec.Path},
			&cli.BoolFlag{Name: "gpus-flag", Usage: "have Docker offer --gpus without NVIDIA's toolkit: link /usr/local/bin/" + runtimeclass.CDIHookName},
		),
		Action: runInstall,
	}
}

func runInstall(ctx context.Context, c *cli.Command) error {
	i, err := installer(c)
	if err != nil {
		return err
	}
	if err := i.Registration.Validate(); err != nil {
		return usage(err)
	}
	switch {
	case i.Target != kind:
		return i.Install(ctx)
	case i.GPUsFlag:
		return install.ErrGPUsFlag
	case i.JSON:
		return usage(errors.New("--json cannot be combined with --target kind: its configuration is YAML"))
	}
	_, err = io.WriteString(i.Out, runtimeclass.KindCluster(i.Registration))
	return err
}
