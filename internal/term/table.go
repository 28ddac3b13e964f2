package term

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// gap is between two columns.
const gap = "  "

// minCell is what remains at least of a cell that is cut, in columns.
const minCell = 12

// Cell is one value of a table.
type Cell struct {
	Text  string
	Style Style
}

// Text is a cell without a style.
func Text(text string) Cell { return Cell{Text: text} }

// Styled is a cell in a style.
func Styled(s Style, text string) Cell { return Cell{Text: text, Style: s} }

// Textf is a cell of a formatted value.
func Textf(format string, args ...any) Cell { return Cell{Text: fmt.Sprintf(format, args...)} }

// Table has columns that are as wide as their widest cell. Where the terminal is too
// narrow, cells of the last column are cut.
type Table struct {
	o    *Output
	rows [][]Cell
}

// Table begins a table with headings.
func (o *Output) Table(headings ...string) *Table {
	t := &Table{o: o}
	var row []Cell
	for _, h := range headings {
		row = append(row, Styled(Bold, h))
	}
	t.rows = append(t.rows, row)
	return t
}

// Row adds a row.
func (t *Table) Row(cells ...Cell) {
	for i := range cells {
		cells[i].Text = visible(cells[i].Text)
	}
	t.rows = append(t.rows, cells)
}

// Flush prints the table.
func (t *Table) Flush() error {
	widths := []int{}
	for _, row := range t.rows {
		for i, c := range row {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], utf8.RuneCountInString(c.Text))
		}
	}
	last := len(widths) - 1
	room := t.o.width
	for _, w := range widths[:max(last, 0)] {
		room -= w + len(gap)
	}
	var b strings.Builder
	for _, row := range t.rows {
		for i, c := range row {
			text := c.Text
			if i == last && t.o.Terminal() {
				text = cut(text, max(room, minCell))
			}
			b.WriteString(t.o.Paint(c.Style, text))
			if i < len(row)-1 {
				b.WriteString(strings.Repeat(" ", widths[i]-utf8.RuneCountInString(text)) + gap)
			}
		}
		b.WriteString("\n")
	}
	_, err := fmt.Fprint(t.o.w, b.String())
	return err
}

// cut shortens a text to a number of columns.
func cut(text string, columns int) string {
	if utf8.RuneCountInString(text) <= columns {
		return text
	}
	runes := []rune(text)
	return string(runes[:columns-1]) + "…"
}
