package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"time"

	"github.com/urfave/cli/v3"
	"golang.org/x/sys/unix"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/request"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/serve"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/status"
)

// serveTimeout is how long NVML may take: less than Prometheus waits.
const serveTimeout = 5 * time.Second

func serveCommand() *cli.Command {
	return &cli.Command{
		Name:        "serve",
		Usage:       "serve metrics, a page about this node and the endpoints of nvidia-docker 1 (as root)",
		Description: "It answers GET on /, /metrics, /healthz, /gpu/info, /gpu/status, /docker/cli and /mesos/cli, without authentication.",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "listen", Value: "127.0.0.1:3476", Usage: "`ADDRESS`: HOST:PORT or unix:PATH"},
			stateFlag(),
		},
		Action: func(ctx context.Context, c *cli.Command) error {
			if os.Geteuid() != 0 {
				return errors.New("only root can read which container has which GPU: run serve as root")
			}
			listener, handler, err := listenToServe(ctx, c)
			if err != nil {
				return err
			}
			return serveHTTP(ctx, listener, handler)
		},
	}
}

// listenToServe listens on --listen, and returns what answers there. It is called before anything
// makes files at the same time: see listen.
func listenToServe(ctx context.Context, c *cli.Command) (net.Listener, http.Handler, error) {
	cfg, err := loader(c)()
	if err != nil {
		return nil, nil, err
	}
	listener, err := listen(ctx, c.String("listen"))
	if err != nil {
		return nil, nil, err
	}
	tcp, ok := listener.Addr().(*net.TCPAddr)
	address := c.String("listen")
	if ok {
		address = tcp.String()
	}
	fmt.Fprintln(c.Root().Writer, "listening on "+address)
	return listener, serve.New(serve.Options{
		StateDir: cfg.Host.StateDir, Loopback: ok && tcp.IP.IsLoopback(),
		Status:     func() (*status.Status, error) { return readStatus(c, min(serveTimeout, nvmlTimeout)) },
		DockerArgs: func(devices string) (serve.DockerArgs, error) { return dockerArgs(c, devices) },
	}), nil
}

// listen listens on HOST:PORT or unix:PATH. Only root can connect to a socket: for that the umask
// of the whole process changes for a moment.
func listen(ctx context.Context, address string) (net.Listener, error) {
	path, ok := strings.CutPrefix(address, "unix:")
	if !ok {
		if _, _, err := net.SplitHostPort(address); err != nil {
			return nil, usage(fmt.Errorf("--listen: %w", err))
		}
		return new(net.ListenConfig).Listen(ctx, "tcp", address)
	}
	// A process that was killed leaves its socket.
	if conn, err := net.Dial("unix", path); err == nil {
		_ = conn.Close()
		return nil, fmt.Errorf("--listen: another process listens on %s", path)
	} else if info, failed := os.Lstat(path); errors.Is(err, unix.ECONNREFUSED) && failed == nil {
		if info.Mode().Type() != os.ModeSocket {
			return nil, fmt.Errorf("--listen: %s is no socket", path)
		}
		if err := os.Remove(path); err != nil {
			return nil, err
		}
	}
	defer unix.Umask(unix.Umask(0o177))
	return new(net.ListenConfig).Listen(ctx, "unix", path)
}

// serveHTTP serves until SIGTERM or SIGINT, and ends cleanly.
func serveHTTP(ctx context.Context, listener net.Listener, handler http.Handler) error {
	ctx, stop := signal.NotifyContext(ctx, unix.SIGTERM, unix.SIGINT)
	defer stop()
	server := &http.Server{
		Handler: handler, MaxHeaderBytes: 16 << 10,
		ReadTimeout: 5 * time.Second, WriteTimeout: 30 * time.Second, IdleTimeout: time.Minute,
	}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(listener) }()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	limit, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if server.Shutdown(limit) != nil {
		return server.Close() // an answer still waits for NVML
	}
	return nil
}

// dockerArgs makes the arguments of run-args for Docker.
func dockerArgs(c *cli.Command, devices string) (serve.DockerArgs, error) {
	r, err := makeRunArgs(c, "docker", []string{request.EnvVisibleDevices + "=" + devices})
	if err != nil {
		return serve.DockerArgs{}, err
	}
	a := serve.DockerArgs{Args: r.Args, Volumes: []string{}, Devices: []string{}}
	for _, f := range r.Files {
		a.Volumes = append(a.Volumes, f.Source+":"+f.Destination+":ro")
	}
	for _, d := range r.Devices {
		a.Devices = append(a.Devices, d.Source)
	}
	return a, nil
}
