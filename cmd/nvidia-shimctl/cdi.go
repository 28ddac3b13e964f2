package main

import (
	"context"
	"errors"
	"io/fs"

	"github.com/urfave/cli/v3"
	"tags.cncf.io/container-device-interface/specs-go"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host/device"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/request"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/cdispec"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/probe"
)

func cdiCommand() *cli.Command {
	return &cli.Command{
		Name:        "cdi",
		Usage:       "print a CDI specification of the GPUs",
		Description: "It works under every runtime, for images with glibc, with container.default-capabilities. Make it again after a driver upgrade or a change of MIG.",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "output", Usage: "write it to `FILE`: " + cdispec.Path},
			&cli.BoolFlag{Name: "refresh", Usage: "do nothing unless the file of --output is there"},
		},
		Action: func(_ context.Context, c *cli.Command) error {
			file := c.String("output")
			if c.Bool("refresh") {
				if file == "" {
					return usage(errors.New("--refresh needs --output"))
				}
				if _, err := cdispec.Read(file); errors.Is(err, fs.ErrNotExist) {
					return nil
				}
			}
			spec, err := makeCDI(c)
			if err != nil {
				return err
			}
			if c.Bool("json") && file == "" {
				return printJSON(c.Root().Writer, spec)
			}
			text, err := cdispec.Text(spec)
			if err != nil {
				return err
			}
			if file != "" {
				return cdispec.Write(file, text)
			}
			_, err = c.Root().Writer.Write(text)
			return err
		},
	}
}

// makeCDI makes the CDI specification of this host.
func makeCDI(c *cli.Command) (*specs.Spec, error) {
	cfg, err := loader(c)()
	if err != nil {
		return nil, err
	}
	h, err := host.Discover(cfg.Host)
	if err != nil {
		return nil, err
	}
	var facts device.Facts
	if len(h.MIG) > 0 {
		answers := asker(c)(probe.Questions{Facts: true})
		if answers.Facts == nil {
			return nil, errors.New(answers.FactsError)
		}
		facts = *answers.Facts
	}
	return cdispec.Make(h, facts, func(devices string) (gpuinject.Plan, error) {
		spec, err := plainSpec([]string{request.EnvVisibleDevices + "=" + devices})
		if err != nil {
			return gpuinject.Plan{}, err
		}
		// The operator may have GPUs without regard to policy.accept-env-when-unprivileged.
		spec.Process.Capabilities.Bounding = []string{"CAP_SYS_ADMIN"}
		spec.Linux.MaskedPaths = nil
		container, err := gpuinject.ExamineSpec(spec, loader(c))
		if err != nil {
			return gpuinject.Plan{}, err
		}
		return resolve(c, container)
	})
}
