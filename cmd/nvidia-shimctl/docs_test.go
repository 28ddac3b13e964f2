package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/urfave/cli/v3"
)

var writeCommands = flag.Bool("commands", false, "write the commands of docs/shimctl.md")

// The list of commands in docs/shimctl.md is made from the command line itself.
func TestCommandsOfThePage(t *testing.T) {
	const page, begin, end = "../../docs/shimctl.md", "<!-- begin commands -->\n", "<!-- end commands -->\n"
	data, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(data), begin)
	have, after, closed := strings.Cut(rest, end)
	if !ok || !closed {
		t.Fatalf("docs/shimctl.md lacks %s or %s", begin, end)
	}
	want := commandsPage()
	if *writeCommands {
		err = os.WriteFile(page, []byte(before+begin+want+end+after), 0o644)
	} else if have != want {
		t.Error("docs/shimctl.md is out of date: go test ./cmd/nvidia-shimctl -run TestCommandsOfThePage -commands")
	}
	if err != nil {
		t.Error(err)
	}
}

// commandsPage lists the commands with their flags; --help explains the flags.
func commandsPage() string {
	var b strings.Builder
	for _, c := range newApp(io.Discard, io.Discard).Commands {
		if c.Hidden {
			continue
		}
		fmt.Fprintf(&b, "\n### %s\n\n%s", c.Name, c.Usage)
		separator := ": "
		flags(c, func(_, flag string) {
			fmt.Fprintf(&b, "%s`--%s`", separator, flag)
			separator = ", "
		})
		b.WriteString("\n")
	}
	return b.String()
}

// flags calls f for the visible flags of a command and of the commands below it.
func flags(c *cli.Command, f func(path, flag string)) {
	for _, flag := range c.Flags {
		if v, ok := flag.(cli.VisibleFlag); ok && v.IsVisible() {
			f(c.FullName(), flag.Names()[0])
		}
	}
	for _, sub := range c.Commands {
		flags(sub, f)
	}
}

// Each command's help has examples, whose flags it has.
func TestExamples(t *testing.T) {
	for _, c := range newApp(io.Discard, io.Discard).VisibleCommands() {
		if len(examples[c.Name]) == 0 && c.Name != "help" {
			t.Errorf("nvidia-shimctl %s --help has no example", c.Name)
		}
		for _, example := range examples[c.Name] {
			_, line, _ := strings.Cut(example, "nvidia-shimctl ")
			line, _, _ = strings.Cut(line, "|")
			line, _, _ = strings.Cut(line, ")")
			app, ran := newApp(io.Discard, io.Discard), ""
			for _, c := range app.Commands {
				c.Action = func(context.Context, *cli.Command) error { ran = c.Name; return nil }
			}
			if err := app.Run(t.Context(), append([]string{"nvidia-shimctl"}, strings.Fields(line)...)); err != nil || ran != c.Name {
				t.Errorf("%s: ran %q: %v", example, ran, err)
			}
		}
	}
}
