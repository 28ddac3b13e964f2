package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/urfave/cli/v3"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/hosttree"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/procfs"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/status"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/term"
)

func statusCommand() *cli.Command {
	return &cli.Command{
		Name:  "status",
		Usage: "show which container and pod uses which GPU, and how much of its memory",
		Flags: append([]cli.Flag{
			&cli.BoolFlag{Name: "watch", Aliases: []string{"w"}, Usage: "repeat until interrupted"},
			&cli.DurationFlag{Name: "interval", Usage: "`TIME` between two repetitions of --watch", Value: 2 * time.Second},
		}, sourceFlags()...),
		Action: inHost(func(ctx context.Context, c *cli.Command) error {
			if c.Duration("interval") < 100*time.Millisecond {
				return usage(fmt.Errorf("--interval %s is less than 100ms", c.Duration("interval")))
			}
			for {
				s, err := readStatus(c, nvmlTimeout)
				if err != nil {
					return err
				}
				if err := printStatus(c, s); err != nil || !c.Bool("watch") {
					return err
				}
				select {
				case <-ctx.Done():
					return nil
				case <-time.After(c.Duration("interval")):
				}
			}
		}),
	}
}

func stateFlag() cli.Flag {
	return &cli.StringSliceFlag{Name: "state", Usage: "state `DIR` of a containerd (default: those of running shims, containerd, k3s and Docker); may be repeated"}
}

// sourceFlags say whose containers are listed.
func sourceFlags() []cli.Flag {
	return append(hostFlags(),
		stateFlag(),
		&cli.StringFlag{Name: "root", Value: "/", Usage: "list the containers below `DIR` instead of this host's: /proc/PID/root of a kind node, whose root is then believed"},
	)
}

func readStatus(c *cli.Command, limit time.Duration) (*status.Status, error) {
	if os.Geteuid() != 0 {
		return nil, errors.New("only root can read which container has which GPU: run status as root")
	}
	cfg, err := loader(c)()
	if err != nil {
		return nil, err
	}
	source, err := readSource(c)
	if err != nil {
		return nil, err
	}
	h, err := host.Discover(cfg.Host)
	if err != nil {
		return nil, err
	}
	records := source.Read()
	live, nvmlErr := askLive(c, limit, status.Cgroups(records))
	s := status.Join(procfs.Host, h.Inventory, live, nvmlErr, records)
	s.AddFiles(h)
	s.AddHealth(cfg.Host.StateDir)
	s.AddIdle(cfg.Host.StateDir)
	return s, nil
}

// readSource returns the containers that --root and --state name, or those of this host's daemons.
func readSource(c *cli.Command) (status.Source, error) {
	s := status.Source{Proc: procfs.Host, Root: cmp.Or(c.String("root"), "/"), StateDirs: slices.Clone(c.StringSlice("state"))}
	if !filepath.IsAbs(s.Root) {
		return s, usage(fmt.Errorf("--root %.256q is not an absolute path", s.Root))
	}
	if len(s.StateDirs) == 0 {
		s.StateDirs = status.StateDirs
		_, err := os.Stat(s.Root)
		return s, err
	}
	for i, dir := range s.StateDirs {
		abs, err := filepath.Abs(dir)
		if err != nil {
			return s, err
		}
		s.StateDirs[i] = abs
		// The directory may be a link.
		f, _, err := hosttree.Tree{Root: s.Root}.OpenPath(abs + "/.")
		if err != nil {
			return s, fmt.Errorf("--state: %w", err)
		}
		f.Close()
	}
	return s, nil
}

// printStatus prints a status. With --watch, it replaces the previous one on a terminal, follows it
// in a pipe, and is a single line as JSON.
func printStatus(c *cli.Command, s *status.Status) error {
	w := c.Root().Writer
	switch {
	case c.Bool("json") && c.Bool("watch"):
		return json.NewEncoder(w).Encode(s)
	case c.Bool("json"):
		return term.JSON(w, s)
	}
	o := term.New(w)
	if c.Bool("watch") {
		o.Clear()
		o.Line(term.Plain, s.Time.Format(time.DateTime))
	}
	s.Print(o)
	if c.Bool("watch") && !o.Terminal() {
		o.Line(term.Plain, "")
	}
	return nil
}
