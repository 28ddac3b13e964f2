package main

import (
	"context"
	"fmt"
	"io"

	"github.com/urfave/cli/v3"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/cdispec"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/install"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/runtimeclass"
)

func installCommand() *cli.Command {
	flags := append(append(installFlags(), registrationFlags()...),
		&cli.StringFlag{Name: "containerd", Usage: "containerd's `PROGRAM`, asked for its version (default: found in PATH)"},
	)
	for _, d := range configurable() {
		flags = append(flags, &cli.StringFlag{Name: d.Name + "-version", Usage: d.Process + "'s `VERSION`, such as " + d.Version + ", instead of asking it"})
	}
	return &cli.Command{
		Name:  "install",
		Usage: "install the programs and register the runtime handler",
		Flags: append(flags,
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
	target := runtimeclass.DaemonOf(i.Target)
	switch {
	case target.Print == nil:
		return i.Install(ctx)
	case i.GPUsFlag:
		return install.ErrGPUsFlag
	case i.JSON:
		return usage(fmt.Errorf("--json cannot be combined with --target %s: its configuration is YAML", i.Target))
	}
	_, err = io.WriteString(i.Out, target.Print(i.Registration))
	return err
}
