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
)

func checkCommand() *cli.Command {
	return &cli.Command{
		Name:  "check",
		Usage: "diagnose this node and suggest fixes (read-only)",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "target", Aliases: []string{"runtime"}, Usage: "`WHAT` to check: containerd, k3s, rke2, docker (default: what runs)", Validator: func(s string) error {
				if s == kind || !slices.Contains(targets, s) {
					return fmt.Errorf("%.256q is not one of containerd, k3s, rke2, docker", s)
				}
				return nil
			}},
			&cli.StringFlag{Name: "containerd-config", Usage: "containerd's configuration `FILE` (default: containerd's, k3s's or RKE2's)"},
			&cli.StringFlag{Name: "docker-config", Usage: "Docker's configuration `FILE` (default: dockerd's)"},
			&cli.StringFlag{Name: "containerd", Usage: "containerd's `PROGRAM` (default: that of the running process, or the one in PATH)"},
		},
		Action: func(ctx context.Context, c *cli.Command) error {
			if os.Geteuid() != 0 {
				fmt.Fprintln(c.Root().ErrWriter, "nvidia-shimctl: not run as root: some files cannot be read, which looks like a problem")
			}
			findings := check.Node(ctx, check.Options{
				Root: "/", Proc: procfs.Host, Config: c.String("config"),
				Target: c.String("target"), Containerd: c.String("containerd"), ContainerdConfig: c.String("containerd-config"), DockerConfig: c.String("docker-config"),
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
