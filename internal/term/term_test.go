package term

import (
	"bytes"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/term/termtest"
)

func print(o *Output) {
	t := o.Table("NAME", "STATE", "WHY")
	t.Row(Text("one"), Styled(Green, "ok"), Text("nothing to say"))
	t.Row(Text("the second"), Styled(Red, "problem"), Text("a long story of many words that does not fit on a narrow screen"))
	if err := t.Flush(); err != nil {
		panic(err)
	}
	o.Field("libraries:", 14, Plain, "liba libb libc libd libe libf libg libh libi libj libk libl")
}

const plain = `NAME        STATE    WHY
one         ok       nothing to say
the second  problem  a long story of many words that does not fit on a narrow screen
libraries:    liba libb libc libd libe libf libg libh libi libj libk libl
`

func TestAPipeGetsPlainTextOfAnyWidth(t *testing.T) {
	t.Setenv("TERM", "xterm")
	var b bytes.Buffer
	print(New(&b))
	if b.String() != plain {
		t.Errorf("got\n%s", b.String())
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	print(New(w))
	w.Close()
	if data, err := io.ReadAll(r); err != nil || string(data) != plain {
		t.Errorf("through a pipe %v:\n%s", err, data)
	}
}

func TestATerminalGetsColoursAndItsWidth(t *testing.T) {
	for _, c := range []struct {
		name, term, noColor string
		columns             int
		want, not           []string
	}{
		{"wide, with colours", "xterm", "", 200, []string{"\x1b[32mok\x1b[0m", "\x1b[1mNAME\x1b[0m", "narrow screen\n", "libk libl\n"}, []string{"…"}},
		{"narrow", "xterm", "", 50, []string{"a long story of many words t…\n", "\n              libh libi libj libk libl\n"}, []string{"narrow screen"}},
		{"very narrow", "xterm", "", 10, []string{"a long stor…\n"}, nil},
		{"a size of nothing is 80 columns", "xterm", "", 0, []string{"fit on a nar"}, nil},
		{"NO_COLOR", "xterm", "1", 200, []string{"the second  problem  a long"}, []string{"\x1b"}},
		{"TERM is dumb", "dumb", "", 200, []string{"the second  problem  a long"}, []string{"\x1b"}},
		{"TERM is not set", "", "", 200, []string{"the second  problem  a long"}, []string{"\x1b"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Setenv("TERM", c.term)
			t.Setenv("NO_COLOR", c.noColor)
			w, screen := termtest.Open(t, c.columns)
			o := New(w)
			print(o)
			if !o.Terminal() || o.Width() == 0 {
				t.Error("not taken for a terminal")
			}
			got := screen()
			for _, s := range c.want {
				if !strings.Contains(got, s) {
					t.Errorf("no %q in\n%q", s, got)
				}
			}
			for _, s := range c.not {
				if strings.Contains(got, s) {
					t.Errorf("%q is in\n%q", s, got)
				}
			}
		})
	}
}

// A process of a container may be called anything.
func TestControlCharactersOfAValueAreNotObeyed(t *testing.T) {
	var b bytes.Buffer
	o := New(&b)
	table := o.Table("A")
	table.Row(Text("x\x1b]0;title\x07\r\ny\xff"))
	if err := table.Flush(); err != nil {
		t.Fatal(err)
	}
	o.Field("b:", 4, Red, "\x1b[2J")
	if got := b.String(); strings.ContainsAny(got, "\x1b\x07\r") || strings.Contains(got, "\xff") || strings.Count(got, "\n") != 3 {
		t.Errorf("got %q", got)
	}
}
