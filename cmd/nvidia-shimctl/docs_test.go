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

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testtree"
)

var writeCommands = flag.Bool("commands", false, "write the commands of docs/shimctl.md")

// The list of commands in docs/shimctl.md is generated from the command line itself.
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
		if c.Hidden || c.Name == "help" {
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

// Each command's help has examples, which are command lines of that command.
func TestExamples(t *testing.T) {
	all := newApp(io.Discard, io.Discard)
	testtree.Check(t, all.Run(t.Context(), []string{"nvidia-shimctl"})) // adds the command completion
	testtree.Check(t, all.Walk(func(c *cli.Command) error {
		help := fine(t, append(strings.Fields(c.FullName())[1:], "--help")...)
		_, list, _ := strings.Cut(help, "Examples:\n\n")
		list, _, _ = strings.Cut(list, "\n\n")
		if strings.TrimSpace(list) == "" {
			t.Errorf("%s --help has no example", c.FullName())
		}
		for example := range strings.Lines(list) {
			_, line, _ := strings.Cut(example, "nvidia-shimctl")
			line, _, _ = strings.Cut(line, "|")
			line, _, _ = strings.Cut(line, ")")
			if ran, err := commandOf(t, strings.Fields(line)); err != nil || !strings.HasPrefix(ran, c.FullName()) {
				t.Errorf("%s: ran %q: %v", example, ran, err)
			}
		}
		return nil
	}))
}

// commandOf returns the name of the command that a command line would run.
func commandOf(t *testing.T, args []string) (ran string, err error) {
	app := newApp(io.Discard, io.Discard)
	note := func(_ context.Context, c *cli.Command) error { ran = c.FullName(); return nil }
	for _, c := range app.Commands {
		c.Action = note
	}
	app.ConfigureShellCompletionCommand = func(c *cli.Command) {
		configureCompletion(c)
		for _, shell := range c.Commands {
			shell.Action = note
		}
	}
	err = app.Run(t.Context(), append([]string{"nvidia-shimctl"}, args...))
	return ran, err
}
