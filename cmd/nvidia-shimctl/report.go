package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"io"
	"maps"
	"os"
	"slices"
	"time"

	"github.com/urfave/cli/v3"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/report"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/term"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/version"
)

// reportSources is a variable so that tests can replace it.
var reportSources = report.Host

// bundleCommand returns the command bundle. run runs another command.
func bundleCommand(run func(context.Context, []string, io.Writer, io.Writer) int) *cli.Command {
	return &cli.Command{
		Name:  "bundle",
		Usage: "collect what a problem report needs in one file (as root)",
		Description: "The tar.gz has the output of info, check, status, version and plan, the versions of the driver, the daemons and runc, the " +
			"shim's configuration and records, the record and drop-ins of install, its runtimes in Docker's configuration, and the shim's " +
			"lines of containerd's log. It has no environment of a container and nothing else of a daemon's configuration.",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "output", Aliases: []string{"o"}, Usage: "`FILE` to make (default: nvidia-shim-TIME.tar.gz)"},
		},
		Action: func(ctx context.Context, c *cli.Command) error {
			if os.Geteuid() != 0 {
				return errors.New("only root can read the records of containers: run bundle as root")
			}
			files := report.Files{}
			for _, args := range [][]string{{"info"}, {"check"}, {"version"}, {"status"}, {"plan", "--env", "NVIDIA_VISIBLE_DEVICES=all"}} {
				var out, errs bytes.Buffer
				// With ctx, the library would take this command line for a subcommand of the
				// running one.
				run(context.Background(), append(common(c), args...), &out, &errs)
				files.Add(args[0]+".json", out.Bytes(), nil)
				files.Add(args[0]+".json.err", errs.Bytes(), nil)
			}
			reportSources.Collect(ctx, c.String("config"), files)
			name := cmp.Or(c.String("output"), "nvidia-shim-"+time.Now().UTC().Format("20060102T150405Z")+".tar.gz")
			if err := files.Write(name); err != nil {
				return err
			}
			return output(c, map[string]any{"file": name, "contents": slices.Sorted(maps.Keys(files))}, true, func(o *term.Output) { o.Line(term.Plain, name) })
		},
	}
}

// common returns the beginning of the other commands' command lines.
func common(c *cli.Command) []string {
	args := []string{version.Ctl, "--json"}
	if c.String("config") != "" {
		args = append(args, "--config", c.String("config"))
	}
	return args
}
