package main

import (
	"fmt"
	"strings"

	"github.com/urfave/cli/v3"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/preview"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/probe"
)

func planOf(c *cli.Command, container gpuinject.Container) (gpuinject.Plan, error) {
	if container.Plain {
		return gpuinject.Plan{Reason: "the container does not ask for the driver: the shim leaves it alone: " + container.Reason}, nil
	}
	rootfs := c.String("rootfs")
	if rootfs == "" && container.Bundle.Dir != "" {
		rootfs = container.Bundle.RootPath()
	}
	return planner(c).Resolve(container, rootfs)
}

// planner plans containers with the shim's configuration and probe.
func planner(c *cli.Command) preview.Planner {
	return preview.Planner{Config: loader(c), Ask: probe.ForContainer(asker(c))}
}

func envFlag(c *cli.Command) ([]string, error) {
	for _, v := range c.StringSlice("env") {
		if !strings.Contains(v, "=") {
			return nil, usage(fmt.Errorf("--env %.256q is not K=V", v))
		}
	}
	return c.StringSlice("env"), nil
}
