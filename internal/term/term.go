package term

import (
	"fmt"
	"io"
	"math"
	"os"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/sys/unix"
)

// Style is a parameter of the control sequence SGR (ECMA-48 8.3.117).
type Style string

// The styles.
const (
	Plain  Style = ""
	Bold   Style = "1"
	Faint  Style = "2"
	Red    Style = "31"
	Green  Style = "32"
	Yellow Style = "33"
	Cyan   Style = "36"
)

// Output is a writer and the properties of the terminal behind it.
type Output struct {
	w      io.Writer
	colour bool
	// width and height are in characters; both are 0 if the writer is not a terminal.
	width, height int
	// left is the number of lines that may still be printed.
	left int
}

// New asks the kernel whether w is a terminal.
func New(w io.Writer) *Output {
	o := &Output{w: w, left: math.MaxInt}
	f, ok := w.(*os.File)
	if !ok {
		return o
	}
	size, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
	if err != nil {
		return o
	}
	// Serial consoles report a size of 0.
	o.width, o.height = 80, 24
	if size.Col > 0 && size.Row > 0 {
		o.width, o.height = int(size.Col), int(size.Row)
	}
	o.colour = os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb" && os.Getenv("TERM") != ""
	return o
}

// Terminal reports whether the output is a terminal.
func (o *Output) Terminal() bool { return o.width > 0 }

// Clear empties the screen of a terminal. What is printed afterwards ends with the last line of
// the screen, so that its first lines stay visible.
func (o *Output) Clear() {
	if o.Terminal() && os.Getenv("TERM") != "dumb" {
		fmt.Fprint(o.w, "\x1b[H\x1b[2J\x1b[3J")
		o.left = o.height - 1
	}
}

// Update replaces the text that it showed before, on a terminal only. An empty text just clears it.
func (o *Output) Update(text string) {
	if o.Terminal() && os.Getenv("TERM") != "dumb" {
		runes := []rune(visible(text))
		fmt.Fprint(o.w, "\r\x1b[K"+string(runes[:min(len(runes), o.width-1)]))
	}
}

// Line prints one line. A terminal gets as much of it as fits.
func (o *Output) Line(s Style, text string) {
	text = visible(text)
	if runes := []rune(text); o.Terminal() && len(runes) > o.width {
		text = string(runes[:o.width-1]) + "…"
	}
	o.print(o.paint(s, text))
}

// Field prints a label in a style and its value. On a terminal a long value continues on further
// lines, indented by the given number of columns.
func (o *Output) Field(label string, columns int, s Style, value string) {
	head := o.paint(s, label) + strings.Repeat(" ", max(0, columns-utf8.RuneCountInString(label)))
	for _, line := range Wrap(visible(value), o.width-columns) {
		o.print(head + line)
		head = strings.Repeat(" ", columns)
	}
}

func (o *Output) print(line string) {
	if o.left > 0 {
		o.left--
		fmt.Fprintln(o.w, line)
	}
}

func (o *Output) paint(s Style, text string) string {
	if !o.colour || s == Plain || text == "" {
		return text
	}
	return "\x1b[" + string(s) + "m" + text + "\x1b[0m"
}

// Wrap breaks a text at blanks into lines of at most width columns. Longer words are not broken,
// since users copy paths from the screen.
func Wrap(text string, width int) []string {
	const minWidth = 20
	if width < minWidth {
		return []string{text}
	}
	lines := []string{""}
	for word := range strings.FieldsSeq(text) {
		last := &lines[len(lines)-1]
		switch {
		case *last == "":
			*last = word
		case utf8.RuneCountInString(*last)+1+utf8.RuneCountInString(word) <= width:
			*last += " " + word
		default:
			lines = append(lines, word)
		}
	}
	return lines
}

// visible replaces control characters, which a terminal would obey, and those that change the order
// of the text around them: a container chooses the names of its processes.
func visible(text string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsGraphic(r) {
			return utf8.RuneError
		}
		return r
	}, strings.ToValidUTF8(text, string(utf8.RuneError)))
}

// Table has a line of headings, and columns as wide as their widest cell.
type Table struct {
	o    *Output
	rows []row
}

type row struct {
	style Style
	cells []string
}

// Table returns an empty table with these headings.
func (o *Output) Table(headings ...string) *Table {
	t := &Table{o: o}
	t.Row(Bold, headings...)
	return t
}

// Row adds a row in a style. The most important cells come first.
func (t *Table) Row(s Style, cells ...string) {
	r := row{style: s}
	for _, c := range cells {
		r.cells = append(r.cells, visible(c))
	}
	t.rows = append(t.rows, r)
}

// FlushRows prints an empty line and the table, or nothing if it has no rows.
func (t *Table) FlushRows() {
	if len(t.rows) > 1 {
		t.o.print("")
		t.Flush()
	}
}

// Flush prints the table. On a terminal, cells that do not fit continue on further lines: nothing
// is cut, since users copy names and ids from the screen.
func (t *Table) Flush() {
	const gap, indent = 2, 4
	starts := make([]int, len(t.rows[0].cells)+1)
	for i := range t.rows[0].cells {
		for _, r := range t.rows {
			// One long name must not push the other rows off the screen.
			if size := utf8.RuneCountInString(r.cells[i]); !t.o.Terminal() || size <= t.o.width/2 {
				starts[i+1] = max(starts[i+1], starts[i]+size+gap)
			}
		}
	}
	for _, r := range t.rows {
		var lines []string
		line := ""
		for i, cell := range r.cells {
			start, size := starts[i], utf8.RuneCountInString(cell)
			if i > 0 {
				start = max(start, utf8.RuneCountInString(line)+gap)
			}
			if t.o.Terminal() && i > 0 && start+size > t.o.width {
				lines, line, start = append(lines, line), "", starts[i]
				if start+size > t.o.width {
					start = indent
				}
			}
			for k, part := range Wrap(cell, t.o.width-start) {
				if k > 0 {
					lines, line = append(lines, line), ""
				}
				line = fmt.Sprintf("%-*s%s", start, line, part)
			}
		}
		for _, line := range append(lines, line) {
			t.o.print(t.o.paint(r.style, strings.TrimRight(line, " ")))
		}
	}
}
