package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/urfave/cli/v3"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/version"
)

// manSection is that of programs for root.
const manSection = 8

func manCommand() *cli.Command {
	return &cli.Command{
		Name:   "man",
		Usage:  "write the manual pages into a directory, or print that of one command",
		Hidden: true,
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "dir", Usage: "`DIR` for the pages"},
		},
		Action: func(_ context.Context, c *cli.Command) error {
			app := newApp(io.Discard, io.Discard)
			if dir := c.String("dir"); dir != "" {
				if c.Args().Present() {
					return usage(errors.New("--dir is for all pages"))
				}
				return writePages(app, dir)
			}
			if !c.Args().Present() {
				_, err := io.WriteString(c.Root().Writer, appPage(app))
				return err
			}
			sub := app.Command(c.Args().First())
			if sub == nil {
				return usage(fmt.Errorf("unknown command %q", c.Args().First()))
			}
			_, err := io.WriteString(c.Root().Writer, commandPage(app, sub))
			return err
		},
	}
}

func writePages(app *cli.Command, dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	pages := map[string]string{app.Name: appPage(app)}
	for _, c := range app.Commands {
		if !c.Hidden {
			pages[app.Name+"-"+c.Name] = commandPage(app, c)
		}
	}
	for name, text := range pages {
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("%s.%d", name, manSection)), []byte(text), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// page writes the macros of man(7).
type page struct{ strings.Builder }

// roff makes plain text of what troff would take for a request or an escape.
func roff(s string) string {
	s = strings.NewReplacer(`\`, `\e`, "-", `\-`).Replace(s)
	if strings.HasPrefix(s, ".") || strings.HasPrefix(s, "'") {
		s = `\&` + s
	}
	return s
}

// argument is text as an argument of a macro.
func argument(s string) string { return `"` + strings.ReplaceAll(roff(s), `"`, `\(dq`) + `"` }

func (p *page) head(name string) {
	fmt.Fprintf(p, ".TH %s %d \"\" %s\n", argument(strings.ToUpper(name)), manSection, argument("nvidia-shimctl "+version.Version))
}

func (p *page) section(name string) { fmt.Fprintf(p, ".SH %s\n", argument(name)) }

// text writes paragraphs, which empty lines separate.
func (p *page) text(s string) {
	for i, paragraph := range strings.Split(strings.TrimSpace(s), "\n\n") {
		if i > 0 {
			p.WriteString(".PP\n")
		}
		fmt.Fprintf(p, "%s\n", roff(strings.Join(strings.Fields(paragraph), " ")))
	}
}

// entry writes a term and what it means.
func (p *page) entry(term, text string) {
	fmt.Fprintf(p, ".TP\n.B %s\n", argument(term))
	p.text(text)
}

// flags writes those of a command, each with the name of its value.
func (p *page) flags(flags []cli.Flag) {
	for _, f := range flags {
		about, value := "", ""
		if d, ok := f.(cli.DocGenerationFlag); ok {
			about = d.GetUsage()
			if before, rest, ok := strings.Cut(about, "`"); ok {
				value, rest, _ = strings.Cut(rest, "`")
				about = before + value + rest
			}
			if value != "" && !strings.HasPrefix(value, "[") {
				value = " " + value
			}
			if s := d.GetValue(); takesValue(f) && s != "" && s != "[]" && !strings.Contains(about, "default") {
				about += " (default: " + s + ")"
			}
		}
		names := []string{}
		for _, n := range f.Names() {
			if len(n) > 1 {
				n = "-" + n
			}
			names = append(names, "-"+n)
		}
		p.entry(strings.Join(names, ", ")+value, capital(about)+".")
	}
}

func appPage(app *cli.Command) string {
	p := &page{}
	p.head(app.Name)
	p.section("NAME")
	p.text(app.Name + " - " + app.Usage)
	p.section("SYNOPSIS")
	p.text(app.Name + " [--json] [--config FILE] COMMAND [FLAG...]")
	p.section("DESCRIPTION")
	p.text(`It says what this host has for containers, and what a container would get and why, by the very code that the containerd shim
		io.containerd.nvidia.v2 runs; it sets a node up for the shim, and takes everything back.`)
	p.section("COMMANDS")
	for _, c := range app.Commands {
		if !c.Hidden {
			p.entry(fmt.Sprintf("%s-%s(%d)", app.Name, c.Name, manSection), capital(c.Usage)+".")
		}
	}
	p.section("OPTIONS")
	p.flags(app.Flags)
	p.tail(app, "")
	return p.String()
}

func commandPage(app, c *cli.Command) string {
	p := &page{}
	name := app.Name + "-" + c.Name
	p.head(name)
	p.section("NAME")
	p.text(name + " - " + c.Usage)
	p.section("SYNOPSIS")
	call := app.Name + " [--json] [--config FILE] " + c.Name
	if len(c.Commands) == 0 || len(c.Flags) > 0 {
		p.text(call + " [FLAG...]")
	}
	for i, sub := range c.Commands {
		if i > 0 || len(c.Flags) > 0 {
			p.WriteString(".br\n")
		}
		p.text(call + " " + sub.Name + " [FLAG...]")
	}
	p.section("DESCRIPTION")
	p.text(capital(c.Usage) + ".\n\n" + c.Description)
	if len(c.Flags) > 0 {
		p.section("OPTIONS")
		p.flags(c.Flags)
	}
	for _, sub := range c.Commands {
		p.section(strings.ToUpper(c.Name + " " + sub.Name))
		p.text(capital(sub.Usage) + ".")
		p.flags(sub.Flags)
	}
	p.tail(app, c.Name)
	return p.String()
}

// tail is what every page ends with.
func (p *page) tail(app *cli.Command, command string) {
	p.section("EXIT STATUS")
	p.entry("0", "Fine.")
	p.entry("1", "A problem was found, or a request refused.")
	p.entry("2", "The command line makes no sense.")
	p.section("ENVIRONMENT")
	p.entry(config.EnvFile, "Another configuration file of the shim, as --config names it.")
	p.entry("NO_COLOR", "No colours on a terminal.")
	p.section("FILES")
	p.entry(config.DefaultPath, "The configuration of the shim.")
	p.section("SEE ALSO")
	var others []string
	if command != "" {
		others = append(others, fmt.Sprintf("%s(%d)", app.Name, manSection))
	}
	for _, c := range app.Commands {
		if !c.Hidden && c.Name != command {
			others = append(others, fmt.Sprintf("%s-%s(%d)", app.Name, c.Name, manSection))
		}
	}
	p.text(strings.Join(others, ", "))
}

func capital(s string) string {
	if s == "" {
		return s
	}
	return strings.ToUpper(s[:1]) + s[1:]
}
