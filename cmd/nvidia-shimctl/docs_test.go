package main

import (
	"io"
	"os"
	"strings"
	"testing"

	"github.com/urfave/cli/v3"
)

// Every command has a section of docs/shimctl.md that names each of its flags.
func TestEveryCommandAndFlagIsDocumented(t *testing.T) {
	data, err := os.ReadFile("../../docs/shimctl.md")
	if err != nil {
		t.Fatal(err)
	}
	sections := map[string]string{}
	for _, part := range strings.Split(string(data), "\n## ")[1:] {
		heading, text, _ := strings.Cut(part, "\n")
		for name := range strings.SplitSeq(heading, " and ") {
			sections[name] = text
		}
	}
	app := newApp(io.Discard, io.Discard)
	for _, f := range app.Flags {
		if !strings.Contains(string(data), "`--"+f.Names()[0]) {
			t.Errorf("docs/shimctl.md does not name --%s", f.Names()[0])
		}
	}
	if len(app.Commands) == 0 {
		t.Fatal("no commands")
	}
	for _, c := range app.Commands {
		if c.Hidden {
			continue // for programs, not for people
		}
		text, ok := sections[c.Name]
		if !ok {
			t.Errorf("docs/shimctl.md has no section %q", "## "+c.Name)
			continue
		}
		delete(sections, c.Name)
		flags(c, func(path, flag string) {
			if !strings.Contains(text, "`--"+flag) {
				t.Errorf("docs/shimctl.md: the section of %s does not name --%s", path, flag)
			}
		})
	}
	for name := range sections {
		t.Errorf("docs/shimctl.md: there is no command %q", name)
	}
}

// flags calls f for the flags of a command and of those below it.
func flags(c *cli.Command, f func(path, flag string)) {
	for _, flag := range c.Flags {
		f(c.FullName(), flag.Names()[0])
	}
	for _, sub := range c.Commands {
		flags(sub, f)
	}
}
