package main

import (
	"fmt"
	"io"
	"path/filepath"

	"github.com/urfave/cli/v3"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/term"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/toolkit"
)

// optionalFile is the value of --from-toolkit: "" without the flag, "true" if it has no value.
type optionalFile string

// Set takes what is behind "=", or "true" if there is nothing.
func (f *optionalFile) Set(s string) error {
	*f = optionalFile(s)
	if s != "true" && !filepath.IsAbs(s) {
		return fmt.Errorf("%q is not an absolute path", s)
	}
	return nil
}

func (f *optionalFile) String() string { return string(*f) }

// Get returns what the command line library hands on.
func (f *optionalFile) Get() any { return string(*f) }

// IsBoolFlag says that the flag may stand alone.
func (f *optionalFile) IsBoolFlag() bool { return true }

// fromToolkit is nil without --from-toolkit.
func fromToolkit(c *cli.Command, to string) (*toolkit.Report, error) {
	file, _ := c.Value("from-toolkit").(string)
	names := []string{file}
	switch file {
	case "":
		return nil, nil
	case "true":
		names = toolkit.Paths
	}
	report, err := toolkit.Read(c.String("root"), names, to)
	return &report, err
}

func printToolkit(w io.Writer, r *toolkit.Report) {
	styles := map[string]term.Style{toolkit.Carried: term.Green, toolkit.Attention: term.Yellow, toolkit.None: term.Faint}
	o := term.New(w)
	o.Line(term.Plain, fmt.Sprintf("%s, for %s:", r.From, r.To))
	t := o.Table("OPTION", "STATE", "HERE", "VALUE")
	for _, p := range r.Options {
		t.Row(styles[p.State], p.Key, p.State, p.To, p.Value)
	}
	t.Flush()
	for _, p := range r.Options {
		if p.Why != "" {
			o.Field(p.Key+":", len(p.Key)+2, styles[p.State], p.Why)
		}
	}
	for _, n := range r.Notes {
		o.Field("note:", 6, term.Cyan, n)
	}
}
