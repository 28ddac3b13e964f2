package term

import (
	"fmt"
	"io"
	"os"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/sys/unix"
)

// Style is how a text looks on a terminal with colours.
type Style string

// Styles, as parameters of the control sequence SGR (ECMA-48 8.3.117).
const (
	Plain  Style = ""
	Bold   Style = "1"
	Faint  Style = "2"
	Red    Style = "31"
	Green  Style = "32"
	Yellow Style = "33"
	Cyan   Style = "36"
)

// Output is a writer with what is known about the reader's screen.
type Output struct {
	w      io.Writer
	colour bool
	// width is that of the terminal in columns; 0 for everything else.
	width int
}

// New looks at a writer and at this process' environment.
func New(w io.Writer) *Output {
	o := &Output{w: w}
	f, ok := w.(*os.File)
	if !ok {
		return o
	}
	if _, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS); err != nil {
		return o
	}
	o.colour = os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb" && os.Getenv("TERM") != ""
	o.width = 80
	if size, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ); err == nil && size.Col > 0 {
		o.width = int(size.Col)
	}
	return o
}

// Terminal tells whether a person reads along.
func (o *Output) Terminal() bool { return o.width > 0 }

// Width is that of the terminal in columns, or 0 where nothing limits a line.
func (o *Output) Width() int { return o.width }

// Paint is a text in a style, where the terminal has colours.
func (o *Output) Paint(s Style, text string) string {
	text = visible(text)
	if !o.colour || s == Plain || text == "" {
		return text
	}
	return "\x1b[" + string(s) + "m" + text + "\x1b[0m"
}

// Clear empties the screen of a terminal, for what is printed again and again.
func (o *Output) Clear() {
	if o.Terminal() && os.Getenv("TERM") != "dumb" {
		fmt.Fprint(o.w, "\x1b[H\x1b[2J\x1b[3J")
	}
}

// Line prints a line as it is.
func (o *Output) Line(text string) { fmt.Fprintln(o.w, text) }

// Field prints a label and its value, the value in a style. On a terminal a long
// value is continued on further lines below its beginning. The label has its columns
// in any case.
func (o *Output) Field(label string, columns int, s Style, value string) {
	o.field(label, columns, Bold, s, value)
}

// StyledField is Field with the style on the label.
func (o *Output) StyledField(label string, columns int, s Style, value string) {
	o.field(label, columns, s, Plain, value)
}

func (o *Output) field(label string, columns int, labelled, s Style, value string) {
	head := o.Paint(labelled, label) + strings.Repeat(" ", max(0, columns-utf8.RuneCountInString(label)))
	for i, part := range wrap(visible(value), o.width-columns) {
		if i > 0 {
			head = strings.Repeat(" ", columns)
		}
		fmt.Fprintln(o.w, head+o.Paint(s, part))
	}
}

// minWrap is the least width that is worth a wrapped line, in columns.
const minWrap = 20

// wrap breaks a text at blanks into lines of at most width columns. A longer word
// stays whole: paths are copied from the screen.
func wrap(text string, width int) []string {
	if width < minWrap || utf8.RuneCountInString(text) <= width {
		return []string{text}
	}
	var lines []string
	line := ""
	for word := range strings.FieldsSeq(text) {
		switch {
		case line == "":
			line = word
		case utf8.RuneCountInString(line)+1+utf8.RuneCountInString(word) <= width:
			line += " " + word
		default:
			lines = append(lines, line)
			line = word
		}
	}
	return append(lines, line)
}

// visible replaces control characters, which a terminal would obey.
func visible(text string) string {
	if strings.IndexFunc(text, unicode.IsControl) < 0 && utf8.ValidString(text) {
		return text
	}
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return utf8.RuneError
		}
		return r
	}, strings.ToValidUTF8(text, string(utf8.RuneError)))
}
