package main

import (
	"io"
	"strings"

	"github.com/urfave/cli/v3"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/term"
)

const (
	helpColumns = 80
	flagColumns = 29 // of a flag's name, with the indentation
)

// The library does not wrap --help.
func init() {
	library := cli.FlagStringer
	cli.FlagStringer = func(f cli.Flag) string {
		name, text, _ := strings.Cut(library(f), "\t")
		name, _, _ = strings.Cut(name, " [ ") // the library shows a repeatable flag twice
		indent := "\n" + strings.Repeat(" ", flagColumns)
		if gap := flagColumns - len("   ") - len(name); gap > 0 {
			name += strings.Repeat(" ", gap)
		} else {
			name += indent
		}
		return name + strings.Join(term.Wrap(text, helpColumns-flagColumns), indent)
	}
	cli.HelpPrinter = func(w io.Writer, template string, data any) {
		cli.HelpPrinterCustom(w, template, data, map[string]any{"wrap": wrapHelp})
	}
}

// wrapHelp wraps a text that begins in a column of --help. It leaves flags and examples unchanged.
func wrapHelp(text string, column int) string {
	if strings.HasPrefix(text, "--") {
		return text
	}
	var lines []string
	for line := range strings.SplitSeq(text, "\n") {
		if strings.HasPrefix(line, " ") {
			lines = append(lines, line)
		} else {
			lines = append(lines, term.Wrap(line, helpColumns-column)...)
		}
	}
	indent := "\n" + strings.Repeat(" ", column)
	return strings.ReplaceAll(strings.Join(lines, indent), indent+"\n", "\n\n")
}
