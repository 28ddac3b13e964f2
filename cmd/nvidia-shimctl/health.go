package main

import (
	"context"
	"fmt"
	"time"

	"github.com/containerd/errdefs/pkg/errgrpc"
	"github.com/urfave/cli/v3"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/state"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/healthwatch"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/idle"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/probe"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/procfs"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/status"
)

// watchHealth watches this host's GPUs until stop, which waits for the end of that. Where the
// configuration allows it, it suspends containers that are idle, and tells report.
func watchHealth(ctx context.Context, c *cli.Command, report func(text string)) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	w := healthwatch.Watcher{
		Config: loader(c), Log: c.Root().ErrWriter,
		Observe: func(ctx context.Context, interval time.Duration, use bool, each func(probe.Observation) error) error {
			q := probe.Questions{Config: probeConfig(c), Watch: interval, Use: use, Timeout: nvmlTimeout}
			return probe.Watch(ctx, func() (string, error) { return askingProgram, nil }, q, each)
		},
		Idle: func(st *state.State) *idle.Watch {
			records := func() []status.Record {
				source, err := readSource(c)
				if err != nil { // status shows it
					return nil
				}
				return source.Read()
			}
			say := func(text string) {
				fmt.Fprintln(c.Root().ErrWriter, "nvidia-shimctl: "+text)
				report(text)
			}
			return &idle.Watch{Records: records, Suspend: suspendIdle, Say: say, Proc: procfs.Host, State: st}
		},
	}
	go func() {
		defer close(ended)
		w.Run(ctx)
	}()
	return func() { cancel(); <-ended }
}

func suspendIdle(ctx context.Context, r status.Record) error {
	return errgrpc.ToNative(callTask(ctx, r, pauseTask))
}
