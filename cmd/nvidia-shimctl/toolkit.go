package main

import (
	"fmt"
	"io"
	"path/filepath"

	"github.com/urfave/cli/v3"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/term"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/toolkit"
)

// fromToolkit is nil without --from-toolkit and --toolkit-config.
func fromToolkit(c *cli.Command, to string) (*toolkit.Report, error) {
	names := toolkit.Paths
	if file := c.String("toolkit-config"); filepath.IsAbs(file) {
		names = []string{file}
	} else if file != "" {
		return nil, usage(fmt.Errorf("--toolkit-config %q is not an absolute path", file))
	} else if !c.Bool("from-toolkit") {
		return nil, nil
	}
	report, err := toolkit.Read(c.String("root"), names, to)
	return &report, err
}

func printToolkit(w io.Writer, r *toolkit.Report) {
	styles := map[string]term.Style{toolkit.Carried: term.Green, toolkit.Attention: term.Yellow, toolkit.None: term.Faint}
	o := term.New(w)
	o.Field("", 0, term.Plain, fmt.Sprintf("%s, for %s:", r.From, r.To))
	for _, p := range r.Options {
		text := p.Key + " = " + p.Value
		if p.To != "" {
			text += ", here " + p.To
		}
		if p.Why != "" {
			text += ": " + p.Why
		}
		o.Field(p.State, 18, styles[p.State], text)
	}
	for _, n := range r.Notes {
		o.Field("note:", 6, term.Cyan, n)
	}
}
