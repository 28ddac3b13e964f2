package main

import (
	"context"

	"github.com/urfave/cli/v3"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/health"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/healthwatch"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/probe"
)

// watchHealth watches this host's GPUs until stop, which waits for the end of that.
func watchHealth(ctx context.Context, c *cli.Command) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	w := healthwatch.Watcher{
		Config: loader(c), Log: c.Root().ErrWriter,
		Observe: func(ctx context.Context, each func(probe.Observation) error) error {
			q := probe.Questions{Config: probeConfig(c), Watch: health.Interval, Timeout: nvmlTimeout}
			return probe.Watch(ctx, func() (string, error) { return askingProgram, nil }, q, each)
		},
	}
	go func() {
		defer close(ended)
		w.Run(ctx)
	}()
	return func() { cancel(); <-ended }
}
