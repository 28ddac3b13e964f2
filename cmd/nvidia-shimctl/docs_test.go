package main

import (
	"flag"
	"io"
	"os"
	"strings"
	"testing"

	clidocs "github.com/urfave/cli-docs/v3"
	"github.com/urfave/cli/v3"
)

var writeCommands = flag.Bool("commands", false, "write the commands of docs/shimctl.md")

// The commands and flags of docs/shimctl.md are made from the command line itself.
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
	want := commandsPage(t)
	if *writeCommands {
		err = os.WriteFile(page, []byte(before+begin+want+end+after), 0o644)
	} else if have != want {
		t.Error("docs/shimctl.md is out of date: go test ./cmd/nvidia-shimctl -run TestCommandsOfThePage -commands")
	}
	if err != nil {
		t.Error(err)
	}
}

// commandsPage is the generator's text from the global flags on, one level of headings down, with
// the flags as lists.
func commandsPage(t *testing.T) string {
	t.Helper()
	text, err := clidocs.ToMarkdown(newApp(io.Discard, io.Discard))
	if err != nil {
		t.Fatal(err)
	}
	_, text, ok := strings.Cut(text, "# GLOBAL OPTIONS\n")
	if !ok {
		t.Fatalf("the generator's text has no global options:\n%s", text)
	}
	return "\n## Flags of every command\n" + strings.NewReplacer(
		"\n\n\n# COMMANDS", "\n\n## Commands", "\n##", "\n###", "\n\n**--", "\n- **--", `=""`, "", " (default: false)", "",
	).Replace("\n"+text)
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
