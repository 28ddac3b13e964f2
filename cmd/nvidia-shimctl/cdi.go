package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"github.com/urfave/cli/v3"
	"tags.cncf.io/container-device-interface/specs-go"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host/device"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/request"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/cdispec"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/probe"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/runtimeclass"
)

// cdiFile is a variable for the tests.
var cdiFile = cdispec.Path

func cdiCommand() *cli.Command {
	return &cli.Command{
		Name:        "cdi",
		Usage:       "print a CDI specification of the GPUs",
		Description: "It works under every runtime, for images with glibc, with container.default-capabilities. install --cdi writes it to " + cdispec.Path + ", and prepare --cdi makes it again: run that after a driver upgrade or a change of MIG.",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "output", Usage: "write it to `FILE`, if that is no other program's"},
		},
		Action: func(_ context.Context, c *cli.Command) error {
			if c.Bool("json") {
				if c.IsSet("output") {
					return noJSON("--output")
				}
				spec, err := makeCDI(c)
				if err != nil {
					return err
				}
				return printJSON(c.Root().Writer, spec)
			}
			text, err := cdiText(c)
			if err != nil {
				return err
			}
			if c.IsSet("output") {
				return cdispec.Write(c.String("output"), text)
			}
			_, err = c.Root().Writer.Write(text)
			return err
		},
	}
}

// refreshCDI makes the specification again that install wrote.
func refreshCDI(c *cli.Command) error {
	before, err := cdispec.Read(cdiFile)
	if err != nil { // there is none, or it is not ours
		return nil
	}
	text, err := cdiText(c)
	if errors.Is(err, device.ErrNoDriver) || bytes.Equal(before, text) {
		return nil
	}
	if err == nil {
		err = cdispec.Write(cdiFile, text)
	}
	if err != nil {
		return fmt.Errorf("%s is not made again: %w", cdiFile, err)
	}
	return nil
}

// addCDI adds the specification to an installation.
func addCDI(c *cli.Command, o *runtimeclass.Options) error {
	if !c.Bool("cdi") {
		return nil
	}
	if filepath.Clean(c.String("root")) != "/" {
		return usage(errors.New("--cdi goes with this host only, not with --root"))
	}
	before, err := cdispec.Read(cdiFile)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	text, err := cdiText(c)
	o.CDI = []runtimeclass.Change{{Kind: runtimeclass.Generated, Path: cdiFile, Before: before, After: text}}
	return err
}

// cdiText makes the text of the specification.
func cdiText(c *cli.Command) ([]byte, error) {
	spec, err := makeCDI(c)
	if err != nil {
		return nil, err
	}
	return cdispec.Text(spec)
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
