package main

import (
	"context"
	"embed"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/urfave/cli/v3"
)

// scripts let a shell ask `nvidia-shimctl complete` for words. The library's own are
// not used: those for bash and PowerShell evaluate the line that is being typed.
//
//go:embed completion
var scripts embed.FS

// shells are those that scripts has one for.
var shells = []string{"bash", "zsh", "fish"}

func completionCommand() *cli.Command {
	c := &cli.Command{
		Name:  "completion",
		Usage: "print the completion script of a shell",
		Action: func(_ context.Context, c *cli.Command) error {
			return usage(fmt.Errorf("%q is not one of %s", c.Args().First(), strings.Join(shells, ", ")))
		},
	}
	for _, shell := range shells {
		c.Commands = append(c.Commands, &cli.Command{
			Name:  shell,
			Usage: "print the script of " + shell,
			Action: func(_ context.Context, c *cli.Command) error {
				text, err := scripts.ReadFile("completion/" + shell)
				if err == nil {
					_, err = c.Root().Writer.Write(text)
				}
				return err
			},
		})
	}
	return c
}

// completeCommand answers the scripts: its arguments are the words after the program's
// name, the last one being typed.
func completeCommand() *cli.Command {
	return &cli.Command{
		Name:            "complete",
		Usage:           "print the words that a command line can go on with",
		Hidden:          true,
		SkipFlagParsing: true,
		Action: func(_ context.Context, c *cli.Command) error {
			words := c.Args().Slice()
			if len(words) > 0 && words[0] == "--" {
				words = words[1:]
			}
			// Another one: the running one has been changed by parsing.
			for _, w := range candidates(newApp(io.Discard, io.Discard), words) {
				fmt.Fprintf(c.Root().Writer, "%s\t%s\n", w.text, w.about)
			}
			return nil
		},
	}
}

// candidate is a word and what it is about.
type candidate struct{ text, about string }

// values are those of flags that have a fixed set of them.
var values = map[string][]string{"target": targets, "for": engines}

// candidates are the words that can stand in the place of the last one.
func candidates(app *cli.Command, words []string) []candidate {
	if len(words) == 0 {
		return nil
	}
	current := words[len(words)-1]
	command, open := walk(app, words[:len(words)-1])
	switch {
	case command == nil:
		return nil
	case open != nil:
		return matching(flagValues(open, ""), strings.TrimPrefix(current, "="))
	case strings.HasPrefix(current, "-"):
		name, _, hasValue := strings.Cut(current, "=")
		if hasValue {
			if f := findFlag(app, command, name); f != nil {
				return matching(flagValues(f, name+"="), current)
			}
			return nil
		}
		return matching(flagNames(app, command), current)
	}
	list := commandNames(command)
	if len(list) == 0 && current == "" {
		// No command of ours takes an argument: what can follow is a flag.
		list = flagNames(app, command)
	}
	return matching(list, current)
}

// walk finds the command that words lead to, and the flag whose value comes next. The
// command is nil after "--", where nothing is known.
func walk(app *cli.Command, words []string) (command *cli.Command, open cli.Flag) {
	command = app
	for _, w := range words {
		switch {
		case open != nil && w == "=":
			// bash makes three words of --flag=value.
		case open != nil:
			open = nil
		case w == "--":
			return nil, nil
		case strings.HasPrefix(w, "-"):
			name, _, hasValue := strings.Cut(w, "=")
			if f := findFlag(app, command, name); f != nil && !hasValue && takesValue(f) {
				open = f
			}
		default:
			if sub := command.Command(w); sub != nil {
				command = sub
			}
		}
	}
	return command, open
}

// findFlag looks a flag up, among those of the command and those that go everywhere.
func findFlag(app, command *cli.Command, name string) cli.Flag {
	name = strings.TrimLeft(name, "-")
	for _, f := range slices.Concat(command.Flags, app.Flags) {
		if slices.Contains(f.Names(), name) {
			return f
		}
	}
	return nil
}

// takesValue tells a flag whose value is the next word.
func takesValue(f cli.Flag) bool {
	if _, optional := f.(*cli.GenericFlag); optional {
		return false
	}
	d, ok := f.(cli.DocGenerationFlag)
	return ok && d.TakesValue()
}

func flagValues(f cli.Flag, prefix string) []candidate {
	var list []candidate
	for _, v := range values[f.Names()[0]] {
		list = append(list, candidate{prefix + v, ""})
	}
	return list
}

func flagNames(app, command *cli.Command) []candidate {
	list := []candidate{{"--help", "show help"}}
	for _, f := range slices.Concat(command.Flags, app.Flags) {
		about := ""
		if d, ok := f.(cli.DocGenerationFlag); ok {
			about = strings.ReplaceAll(d.GetUsage(), "`", "")
		}
		if c := (candidate{"--" + f.Names()[0], about}); !slices.Contains(list, c) {
			list = append(list, c)
		}
	}
	slices.SortFunc(list, func(a, b candidate) int { return strings.Compare(a.text, b.text) })
	return list
}

func commandNames(command *cli.Command) []candidate {
	var list []candidate
	for _, c := range command.Commands {
		if !c.Hidden {
			list = append(list, candidate{c.Name, c.Usage})
		}
	}
	return list
}

func matching(list []candidate, prefix string) []candidate {
	return slices.DeleteFunc(list, func(c candidate) bool { return !strings.HasPrefix(c.text, prefix) })
}
