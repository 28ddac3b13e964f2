package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"github.com/urfave/cli/v3"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/request"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/runargs"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/serve"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/status"
)

// serveTimeout is how long NVML may take. It is shorter than Prometheus waits.
const serveTimeout = 5 * time.Second

func serveCommand() *cli.Command {
	return &cli.Command{
		Name:        "serve",
		Usage:       "serve metrics, a page about this node and the endpoints of nvidia-docker 1 (as root)",
		Description: "It answers GET on /, /metrics, /healthz, /gpu/info, /gpu/status, /docker/cli and /mesos/cli, without authentication.",
		Flags: append([]cli.Flag{
			&cli.StringFlag{Name: "listen", Value: "127.0.0.1:3476", Usage: "`ADDRESS`: HOST:PORT or unix:PATH"},
		}, sourceFlags()...),
		Action: func(ctx context.Context, c *cli.Command) error {
			if os.Geteuid() != 0 {
				return errors.New("only root can read which container has which GPU: run serve as root")
			}
			limitMemory(serveMemory)
			if err := enterHost(c); err != nil {
				return err
			}
			listener, handler, err := listenToServe(ctx, c)
			if err != nil {
				return err
			}
			defer watchHealth(ctx, c, func(string) {})()
			ctx, stop := context.WithCancel(ctx)
			defer stop()
			go handler.Sample(ctx)
			return serve.Run(ctx, listener, handler)
		},
	}
}

// listenToServe listens on --listen, and returns the listener and its handler.
func listenToServe(ctx context.Context, c *cli.Command) (net.Listener, *serve.Server, error) {
	cfg, err := loader(c)()
	if err != nil {
		return nil, nil, err
	}
	listener, err := serve.Listen(ctx, c.String("listen"))
	if err != nil {
		return nil, nil, err
	}
	tcp, ok := listener.Addr().(*net.TCPAddr)
	address := c.String("listen")
	if ok {
		address = tcp.String()
	}
	fmt.Fprintln(c.Root().Writer, "listening on "+address)
	plans := planner(c)
	plans.Ask = serve.Limited(plans.Ask)
	return listener, serve.New(serve.Options{
		StateDir: func() string {
			if now, err := loader(c)(); err == nil {
				cfg = now
			}
			return cfg.Host.StateDir
		},
		Loopback: ok && tcp.IP.IsLoopback(),
		Status:   func() (*status.Status, error) { return readStatus(c, min(serveTimeout, nvmlTimeout)) },
		DockerArgs: func(devices string) (*runargs.Args, error) {
			return runargs.Make(plans, runargs.Docker, []string{request.EnvVisibleDevices + "=" + devices})
		},
	}), nil
}
