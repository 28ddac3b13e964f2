package main

import (
	"context"
	"fmt"
	"os"
	"slices"

	"github.com/urfave/cli/v3"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/cdispec"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/check"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/procfs"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/term"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/runtimeclass"
)

func checkCommand() *cli.Command {
	flags := []cli.Flag{
		&cli.StringFlag{Name: "target", Aliases: []string{"runtime"}, Usage: "`WHAT` to check: " + targets(true) + " (default: what runs)", Validator: func(s string) error {
			if d := runtimeclass.DaemonOf(s); d.Name == "" || d.Print != nil {
				return fmt.Errorf("%.256q is not one of %s", s, targets(true))
			}
			return nil
		}},
	}
	for _, d := range configurable() {
		flags = append(flags, &cli.StringFlag{Name: d.Name + "-config", Usage: d.Title + "'s configuration `FILE` (default: that of the daemon that runs)"})
	}
	return &cli.Command{
		Name:  "check",
		Usage: "diagnose this node and suggest fixes (read-only)",
		Flags: append(flags,
			&cli.StringFlag{Name: "containerd", Usage: "containerd's `PROGRAM` (default: that of the running process, or the one in PATH)"},
		),
		Action: func(ctx context.Context, c *cli.Command) error {
			if os.Geteuid() != 0 {
				fmt.Fprintln(c.Root().ErrWriter, "nvidia-shimctl: not run as root: some files cannot be read, which looks like a problem")
			}
			configs := map[string]string{}
			for _, d := range configurable() {
				configs[d.Name] = c.String(d.Name + "-config")
			}
			findings := check.Node(ctx, check.Options{
				Root: "/", Proc: procfs.Host, Config: c.String("config"),
				Target: c.String("target"), Containerd: c.String("containerd"), Configs: configs,
				CDI: func() ([]byte, error) { return cdispec.Text(planner(c)) },
			})
			wrong := slices.ContainsFunc(findings, func(f check.Finding) bool { return f.Level == check.Problem })
			v := map[string]any{"ok": !wrong, "findings": findings}
			return output(c, v, !wrong, func(o *term.Output) { printFindings(o, findings) })
		},
	}
}

func printFindings(o *term.Output, findings []check.Finding) {
	styles := map[string]term.Style{check.OK: term.Green, check.Warning: term.Yellow, check.Problem: term.Red}
	count := map[string]int{}
	for _, f := range findings {
		count[f.Level]++
		o.Field(f.Level, 9, styles[f.Level], f.Check+": "+f.Message)
		if f.Fix != "" {
			o.Field("", 9, term.Plain, "fix: "+f.Fix)
		}
	}
	o.Line(term.Bold, fmt.Sprintf("problems: %d, warnings: %d, ok: %d", count[check.Problem], count[check.Warning], count[check.OK]))
}
