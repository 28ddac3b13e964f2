package runtimeclass

import (
	"context"
	"fmt"
	"io"
	"os/exec"
	"strings"
)

// Restart is the systemctl command that makes a daemon read its new configuration.
type Restart struct {
	// Verb is "restart" or "reload".
	Verb string
	// Units lists the units, one of which is active on a node, the likeliest first. There are none
	// if none has been started yet.
	Units []string
	// stops says what a restart does to running containers; "" if they stay.
	stops string
}

func (r Restart) String() string {
	if len(r.Units) == 0 {
		return ""
	}
	return "systemctl " + r.Verb + " " + r.Units[0]
}

// Containers describes what the command does to running containers.
func (r Restart) Containers() string {
	if r.Verb == "restart" && r.stops != "" {
		return r.stops
	}
	return "running containers stay"
}

// Run runs the command for the unit that is active. out receives the output of systemctl.
func (r Restart) Run(ctx context.Context, out io.Writer) error {
	for _, unit := range r.Units {
		if len(r.Units) > 1 && exec.CommandContext(ctx, "systemctl", "is-active", "--quiet", unit).Run() != nil {
			continue
		}
		if err := systemctl(ctx, out, r.Verb, unit); err != nil {
			// A second installation changes nothing, so it restarts nothing.
			return fmt.Errorf("systemctl %[1]s %[2]s: %[3]w: the files are changed and stay so; `journalctl -u %[2]s` says why, then run `systemctl %[1]s %[2]s` by hand",
				r.Verb, unit, err)
		}
		return nil
	}
	if len(r.Units) == 0 {
		return nil
	}
	return fmt.Errorf("none of %s is active: nothing was restarted; the changes take effect at its next start", strings.Join(r.Units, ", "))
}

// StartUnit runs the installed unit of `nvidia-shimctl prepare`.
func StartUnit(ctx context.Context, out io.Writer) error {
	for _, args := range [][]string{{"daemon-reload"}, {"restart", UnitName}} {
		if err := systemctl(ctx, out, args...); err != nil {
			return fmt.Errorf("systemctl %s: %w: `journalctl -u %s` says why", args[0], err, UnitName)
		}
	}
	return nil
}

func systemctl(ctx context.Context, out io.Writer, args ...string) error {
	cmd := exec.CommandContext(ctx, "systemctl", args...)
	cmd.Stdout, cmd.Stderr = out, out
	return cmd.Run()
}
