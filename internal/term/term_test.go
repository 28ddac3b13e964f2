package term

import (
	"bytes"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/containerd/console"
	"golang.org/x/sys/unix"
)

func print(o *Output) {
	t := o.Table("NAME", "STATE", "WHY")
	t.Row(Green, "one", "ok", "nothing to say")
	t.Row(Red, "the second", "problem", "a long story of many words that does not fit on a narrow screen")
	t.Flush()
	o.Field("libraries:", 14, Yellow, "liba libb libc libd libe libf libg libh libi libj libk libl")
}

const plain = `NAME        STATE    WHY
one         ok       nothing to say
the second  problem  a long story of many words that does not fit on a narrow screen
libraries:    liba libb libc libd libe libf libg libh libi libj libk libl
`

func TestAPipeGetsPlainTextOfAnyWidth(t *testing.T) {
	t.Setenv("TERM", "xterm")
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	print(New(w))
	New(w).Clear()
	w.Close()
	if data, err := io.ReadAll(r); err != nil || string(data) != plain {
		t.Errorf("%v:\n%s", err, data)
	}
}

// terminal makes a pseudo-terminal; screen returns what was written to it.
func terminal(t *testing.T, columns, lines uint16) (w *os.File, screen func() string) {
	t.Helper()
	master, name, err := console.NewPty()
	if err == nil {
		err = master.Resize(console.WinSize{Height: lines, Width: columns})
	}
	if err != nil {
		t.Fatal(err)
	}
	slave, err := os.OpenFile(name, os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	all := make(chan string, 1)
	go func() {
		// Reading ends with EIO when the other side is closed.
		data, _ := io.ReadAll(master)
		master.Close()
		all <- strings.ReplaceAll(string(data), "\r\n", "\n")
	}()
	return slave, func() string {
		slave.Close()
		return <-all
	}
}

func TestATerminalGetsColoursAndItsWidth(t *testing.T) {
	for _, c := range []struct {
		name, term, noColor string
		columns             uint16
		want                string
	}{
		{"wide", "xterm", "", 200, "\x1b[31mthe second  problem  a long story of many words that does not fit on a narrow screen\x1b[0m\n"},
		{"wide, a label", "xterm", "", 200, "\x1b[33mlibraries:\x1b[0m    liba"},
		{"narrow", "xterm", "", 50, "\x1b[1mNAME        STATE    WHY\x1b[0m\n\x1b[32mone         ok       nothing to say\x1b[0m\n\x1b[31mthe second  problem\x1b[0m\n\x1b[31m    a long story of many words that does not fit\x1b[0m\n\x1b[31m    on a narrow screen\x1b[0m\n"},
		{"narrow, a field", "xterm", "", 50, "liba libb libc libd libe libf libg\n              libh libi libj libk libl\n"},
		{"very narrow", "xterm", "", 10, "the second\x1b[0m\n\x1b[31m    problem\x1b[0m\n\x1b[31m    a long story"},
		{"without a size", "xterm", "", 0, "problem\x1b[0m\n\x1b[31m    a long story of many words that does not fit on a narrow screen\x1b[0m\n"},
		{"NO_COLOR", "xterm", "1", 200, plain},
		{"TERM is dumb", "dumb", "", 200, plain},
		{"TERM is not set", "", "", 200, plain},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Setenv("TERM", c.term)
			t.Setenv("NO_COLOR", c.noColor)
			w, screen := terminal(t, c.columns, 24)
			print(New(w))
			if got := screen(); !strings.Contains(got, c.want) {
				t.Errorf("no %q in\n%q", c.want, got)
			}
		})
	}
}

func TestAClearedScreenShowsItsFirstLines(t *testing.T) {
	t.Setenv("TERM", "xterm")
	t.Setenv("NO_COLOR", "1")
	w, screen := terminal(t, 200, 4)
	o := New(w)
	o.Clear()
	print(o)
	if got, want := screen(), "\x1b[H\x1b[2J\x1b[3J"+strings.Join(strings.SplitAfter(plain, "\n")[:3], ""); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// A process in a container may have any name.
func TestControlCharactersAreReplaced(t *testing.T) {
	var b bytes.Buffer
	o := New(&b)
	table := o.Table("A", "B")
	table.Row(Plain, "x\x1b]0;title\x07\r\ny\xff", "\t")
	table.Flush()
	o.Field("b:", 4, Red, "\x1b[2J\u202e")
	if got := b.String(); strings.ContainsAny(got, "\x1b\x07\r\t\u202e") || strings.Contains(got, "\xff") || strings.Count(got, "\n") != 3 {
		t.Errorf("got %q", got)
	}
}
