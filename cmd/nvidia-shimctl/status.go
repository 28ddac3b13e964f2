package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/urfave/cli/v3"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/procfs"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/status"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/term"
)

func statusCommand() *cli.Command {
	return &cli.Command{
		Name:  "status",
		Usage: "show which container and pod uses which GPU, and how much of its memory",
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "watch", Aliases: []string{"w"}, Usage: "repeat until interrupted"},
			&cli.DurationFlag{Name: "interval", Usage: "`TIME` between two repetitions of --watch", Value: 2 * time.Second},
			stateFlag(),
		},
		Action: func(ctx context.Context, c *cli.Command) error {
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
		},
	}
}

func stateFlag() cli.Flag {
	return &cli.StringSliceFlag{Name: "state", Usage: "state `DIR` of a containerd (default: those of running shims, containerd, k3s and Docker); may be repeated"}
}

func readStatus(c *cli.Command, limit time.Duration) (*status.Status, error) {
	if os.Geteuid() != 0 {
		return nil, errors.New("only root can read which container has which GPU: run status as root")
	}
	cfg, err := loader(c)()
	if err != nil {
		return nil, err
	}
	dirs, err := stateDirs(c)
	if err != nil {
		return nil, err
	}
	h, err := host.Discover(cfg.Host)
	if err != nil {
		return nil, err
	}
	live, nvmlErr := askLive(c, limit)
	return status.Join(procfs.Host, h.Inventory, live, nvmlErr, status.Read(procfs.Host, dirs)), nil
}

// stateDirs returns the directories of --state, or those where daemons keep their state.
func stateDirs(c *cli.Command) ([]string, error) {
	dirs := c.StringSlice("state")
	if len(dirs) == 0 {
		return status.StateDirs, nil
	}
	for _, dir := range dirs {
		if _, err := os.Stat(dir); err != nil {
			return nil, fmt.Errorf("--state: %w", err)
		}
	}
	return dirs, nil
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
