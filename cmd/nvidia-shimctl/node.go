package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"time"

	"github.com/urfave/cli/v3"
	"golang.org/x/sys/unix"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/kubeapi"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/node"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/serve"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/version"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/runtimeclass"
)

func nodeCommand() *cli.Command {
	return &cli.Command{
		Name:  "node",
		Usage: "keep a Kubernetes node installed, from a privileged pod",
		Description: "It installs, runs check, sets the labels " + node.ReadyLabel + " and " + node.VersionLabel + " of the node, and repairs what changes. " +
			"If check finds a problem after a change, it restores the files. The label " + node.RemoveLabel + "=true removes everything. " +
			"The pod needs hostPID and the host's root directory.",
		Flags: append(append(daemonFlags(), registrationFlags()...), fromToolkitFlag(),
			&cli.StringFlag{Name: "settings", Usage: "the shim's configuration on the node, as `TOML`; without it, that of the node"},
			&cli.StringFlag{Name: "host-root", Value: "/host", Usage: "`DIR` of the pod with the host's root"},
			&cli.StringFlag{Name: "node-name", Sources: cli.EnvVars("NODE_NAME"), Usage: "`NAME` of the node with the labels; none without it"},
			&cli.DurationFlag{Name: "interval", Value: time.Minute, Usage: "`TIME` between two rounds"},
			&cli.Uint16Flag{Name: "ready-port", Usage: "`PORT` on which GET /readyz is 200 if the last round succeeded, else 503"},
			&cli.BoolFlag{Name: "once", Usage: "end after the first round"},
			&cli.BoolFlag{Name: "uninstall", Usage: "remove everything, and keep it removed"},
			// The installer reads it.
			&cli.BoolFlag{Name: "restart", Value: true, Hidden: true},
		),
		Action: keepNode,
	}
}

func keepNode(ctx context.Context, c *cli.Command) error {
	switch {
	case os.Geteuid() != 0:
		return errors.New("only root can install a node")
	case c.Duration("interval") <= 0:
		return usage(errors.New("--interval has to be positive"))
	case node.CheckSettings(c.String("settings")) != nil:
		return usage(fmt.Errorf("--settings: %w", node.CheckSettings(c.String("settings"))))
	case runtimeclass.DaemonOf(c.String("target")).Print != nil:
		return usage(fmt.Errorf("--target %s is not a daemon of this host: a node of %[1]s runs containerd", c.String("target")))
	}
	limitMemory(nodeMemory)
	programs, account, err := node.EnterHost(c.String("host-root"))
	if err != nil {
		return err
	}
	i, err := installer(c)
	if err != nil {
		return err
	}
	// In the host's root, the pod's programs are at another path.
	i.Programs, i.Registration.BinDir = programs, filepath.Clean(c.String("bin-dir"))
	if err := i.Registration.Validate(); err != nil {
		return usage(err)
	}
	k := node.Keeper{Installer: i, Planner: planner(c), Config: c.String("config"), CDIFile: cdiFile, Uninstall: c.Bool("uninstall")}
	k.Settings, k.FromToolkit, k.Installer.Toolkit = c.String("settings"), c.Bool("from-toolkit"), nil
	ctx, stop := signal.NotifyContext(ctx, unix.SIGTERM, unix.SIGINT)
	defer stop()
	if name := c.String("node-name"); name != "" {
		if k.API, err = kubeapi.Follow(ctx, name, account); err != nil {
			return usage(fmt.Errorf("--node-name: %w", err))
		}
	}
	// The image has no C library, so the installed program asks NVML.
	askingProgram = filepath.Join(i.Registration.BinDir, version.Ctl)
	failed, err := serveReady(ctx, c.Uint16("ready-port"), &k)
	switch {
	case err != nil:
		return err
	case !c.Bool("once"):
		if !k.Uninstall {
			defer watchHealth(ctx, c, func(text string) { k.ReportIdle(ctx, text) })()
		}
		return k.Keep(ctx, c.Duration("interval"), failed)
	}
	if err = k.Round(ctx); ctx.Err() != nil {
		return nil // a change in progress is completed
	}
	return err
}

// serveReady answers the pod's readiness probe, unless the port is 0. The channel receives the error
// of the server if it fails.
func serveReady(ctx context.Context, port uint16, ready http.Handler) (<-chan error, error) {
	failed := make(chan error, 1)
	if port == 0 {
		return failed, nil
	}
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", fmt.Sprintf(":%d", port))
	if err != nil {
		return nil, err
	}
	go func() { failed <- serve.Run(ctx, listener, ready) }()
	return failed, nil
}
