package main

import (
	"context"
	_ "embed"
	"io"
	"slices"

	clidocs "github.com/urfave/cli-docs/v3"
	"github.com/urfave/cli/v3"
)

//go:embed completion.bash
var bashCompletion string

// configureCompletion changes the library's completion command, which prints the script of a shell.
func configureCompletion(c *cli.Command) {
	c.Hidden = false
	c.Usage = "print the completion script of a shell"
	c.Description = ""
	c.Commands = slices.DeleteFunc(c.Commands, func(shell *cli.Command) bool { return shell.Name == "pwsh" })
	for _, shell := range c.Commands {
		shell.Usage = "print the script of " + shell.Name
		action := shell.Action
		shell.Action = func(ctx context.Context, c *cli.Command) error {
			switch {
			case c.Bool("json"):
				return noJSON("completion")
			case shell.Name != "bash":
				return action(ctx, c)
			}
			_, err := io.WriteString(c.Root().Writer, bashCompletion)
			return err
		}
		guard(shell)
	}
	c.Action = func(_ context.Context, c *cli.Command) error { return cli.ShowSubcommandHelp(c) }
	guard(c)
}

// manCommand returns the command man. newApp returns the command line that the page describes.
func manCommand(newApp func(stdout, stderr io.Writer) *cli.Command) *cli.Command {
	return &cli.Command{
		Name:   "man",
		Usage:  "print the manual page",
		Hidden: true,
		Action: func(_ context.Context, c *cli.Command) error {
			// Use a new app, because the library adds to the running one. Section 8 is for root's
			// programs.
			page, err := clidocs.ToManWithSection(newApp(io.Discard, io.Discard), 8)
			if err != nil {
				return err
			}
			_, err = io.WriteString(c.Root().Writer, page)
			return err
		},
	}
}
