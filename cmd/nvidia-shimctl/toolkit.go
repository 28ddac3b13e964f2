package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/urfave/cli/v3"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/term"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/toolkit"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/runtimeclass"
)

// optionalFile is the value of --from-toolkit, which may be given without one.
type optionalFile struct {
	set  bool
	name string
}

// Set takes what is behind "=", or "true" where there is none.
func (f *optionalFile) Set(s string) error {
	f.set, f.name = true, s
	if s == "true" {
		f.name = ""
	} else if !filepath.IsAbs(s) {
		return fmt.Errorf("%q is not an absolute path", s)
	}
	return nil
}

// String is the file's name.
func (f *optionalFile) String() string { return f.name }

// Get returns the value itself.
func (f *optionalFile) Get() any { return f }

// IsBoolFlag says that the flag may stand alone.
func (f *optionalFile) IsBoolFlag() bool { return true }

// toolkitReport is what became of the toolkit's configuration.
type toolkitReport struct {
	// From and To are the two files, below the root.
	From string `json:"from"`
	To   string `json:"to"`
	toolkit.Report
}

// shimConfig is the file that the shim will read.
func shimConfig(c *cli.Command) string {
	if name := c.String("config"); filepath.IsAbs(name) {
		return name
	}
	return config.DefaultPath
}

// fromToolkit adds the configuration file to what install writes.
func (x *extras) fromToolkit(c *cli.Command) error {
	asked, _ := c.Value("from-toolkit").(*optionalFile)
	if asked == nil || !asked.set {
		return nil
	}
	names := toolkit.Paths
	if asked.name != "" {
		names = []string{asked.name}
	}
	root := c.String("root")
	text, from, err := firstFile(root, names)
	if err != nil {
		return err
	}
	report, err := toolkit.Toolkit(text, func(path string) bool {
		_, err := os.Lstat(filepath.Join(root, path))
		return err == nil
	})
	if err != nil {
		return fmt.Errorf("%s: %w", from, err)
	}
	x.toolkit = &toolkitReport{From: from, To: shimConfig(c), Report: *report}
	change, err := x.plan.Host.InstallConfig(x.toolkit.To, report.Text)
	if errors.Is(err, runtimeclass.ErrExists) && c.Bool("dry-run") {
		// The operator wants to see what there would be to add.
		x.refused = err
		for line := range strings.Lines(report.Text) {
			x.plan.Notes = append(x.plan.Notes, "  "+strings.TrimSuffix(line, "\n"))
		}
		return nil
	}
	if err != nil {
		return err
	}
	x.plan.Changes = append(x.plan.Changes, change)
	return nil
}

// maxToolkit bounds the toolkit's file, in bytes.
const maxToolkit = 1 << 20

// firstFile reads the first of the files that is there.
func firstFile(root string, names []string) (text []byte, name string, err error) {
	for _, name := range names {
		f, err := os.Open(filepath.Join(root, name))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, "", err
		}
		defer f.Close()
		text, err := io.ReadAll(io.LimitReader(f, maxToolkit+1))
		if err == nil && len(text) > maxToolkit {
			err = fmt.Errorf("%s is larger than %d bytes", name, maxToolkit)
		}
		return text, name, err
	}
	return nil, "", fmt.Errorf("no configuration of NVIDIA's toolkit at %s: name it with --from-toolkit=FILE, or leave the flag out", strings.Join(names, " or "))
}

// print shows what becomes of each option.
func (r *toolkitReport) print(w io.Writer) error {
	if r == nil {
		return nil
	}
	styles := map[string]term.Style{toolkit.Carried: term.Green, toolkit.Attention: term.Yellow, toolkit.None: term.Faint}
	o := term.New(w)
	o.Line(fmt.Sprintf("%s, for %s:", r.From, r.To))
	t := o.Table("OPTION", "STATE", "HERE", "VALUE")
	for _, p := range r.Options {
		t.Row(term.Text(p.Key), term.Styled(styles[p.State], p.State), term.Text(p.To), term.Text(p.Value))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for _, p := range r.Options {
		if p.Why != "" {
			o.Field(p.Key+":", len(p.Key)+2, styles[p.State], p.Why)
		}
	}
	for _, n := range r.Notes {
		o.Field("note:", 6, term.Cyan, n)
	}
	return nil
}
