package guards

import (
	"cmp"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"slices"
	"strings"
	"testing"
)

// marker begins the comment that marks a line, or the line below, as the guards that it names.
const marker = "// guard: "

// mark is a guard's line in a file.
type mark struct {
	name string
	line int
}

// findMarks returns the marks of a file, and an error for a comment that only seems to be one.
func findMarks(fset *token.FileSet, file *ast.File, src string) ([]mark, error) {
	var list []mark
	lines := strings.Split(src, "\n")
	for _, group := range file.Comments {
		for _, c := range group.List {
			names, ok := strings.CutPrefix(c.Text, marker)
			line := fset.Position(c.Pos()).Line
			switch {
			case !ok && strings.Contains(c.Text, "guard:"):
				return nil, fmt.Errorf("line %d: a mark begins with %q", line, marker)
			case !ok:
				continue
			}
			for isComment(lines[line-1]) {
				line++
			}
			for _, name := range strings.Split(names, "; ") {
				list = append(list, mark{name, line})
			}
		}
	}
	return list, nil
}

func isComment(line string) bool {
	return strings.HasPrefix(strings.TrimSpace(line), "//")
}

// edit replaces the text between two offsets.
type edit struct {
	start, end int
	text       string
}

// remove returns the source of a file without one guard. A row names the guard, its test, and where
// that is not the marked line as a whole, the part that counts no longer, and what replaces it.
func remove(src string, row []string) (string, error) {
	name, part, with := row[0], "", ""
	if len(row) > 2 {
		part = row[2]
	}
	if len(row) > 3 {
		with = row[3]
	}
	fset := token.NewFileSet()
	file, err := parser.ParseFile(fset, "", src, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return "", err
	}
	marks, err := findMarks(fset, file, src)
	if err != nil {
		return "", err
	}
	i := slices.IndexFunc(marks, func(m mark) bool { return m.name == name })
	if i < 0 {
		return "", fmt.Errorf("no mark names %q", name)
	}
	tokens := fset.File(file.Pos())
	start := tokens.Offset(tokens.LineStart(marks[i].line))
	line, _, _ := strings.Cut(src[start:], "\n")
	line, _, _ = strings.Cut(line, marker)
	if part == "" {
		return apply(src, whole(tokens, file, marks[i].line))
	}
	if n := strings.Count(line, part); n != 1 {
		return "", fmt.Errorf("its line has %q %d times", part, n)
	}
	start += strings.Index(line, part)
	end := start + len(part)
	if len(row) > 3 {
		return apply(src, []edit{{start, end, with}})
	}
	return apply(src, neutral(tokens, file, start, end))
}

// whole returns the edits without what begins on a line: a condition never holds, and a statement
// is not executed. Names stay in use, so that the rest compiles.
func whole(tokens *token.File, file *ast.File, line int) (edits []edit) {
	around := func(n ast.Node, before, after string) {
		start, end := tokens.Offset(n.Pos()), tokens.Offset(n.End())
		edits = append(edits, edit{start, start, before}, edit{end, end, after})
	}
	ast.Inspect(file, func(n ast.Node) bool {
		if n == nil || edits != nil || tokens.Line(n.End()) < line {
			return false
		}
		if tokens.Line(n.Pos()) != line {
			return true
		}
		switch n := n.(type) {
		case *ast.IfStmt:
			around(n.Cond, "(", ") && false")
		case *ast.CaseClause:
			for _, e := range n.List {
				around(e, "(", ") && false")
			}
		case *ast.AssignStmt, *ast.ExprStmt, *ast.IncDecStmt, *ast.SendStmt:
			around(n, "if false { ", " }")
		}
		return true
	})
	return edits
}

// neutral returns the edits without one part of a line: an operand of ||, && or | decides nothing,
// and any other text is cut out.
func neutral(tokens *token.File, file *ast.File, start, end int) []edit {
	edits := []edit{{start, end, ""}}
	ast.Inspect(file, func(n ast.Node) bool {
		b, ok := n.(*ast.BinaryExpr)
		if !ok {
			return true
		}
		for _, x := range []ast.Expr{b.X, b.Y} {
			if tokens.Offset(x.Pos()) != start || tokens.Offset(x.End()) != end {
				continue
			}
			switch b.Op {
			case token.LOR:
				edits = []edit{{start, start, "(("}, {end, end, ") && false)"}}
			case token.LAND:
				edits = []edit{{start, start, "(("}, {end, end, ") || true)"}}
			case token.OR:
				edits = []edit{{start, start, "(("}, {end, end, ") & 0)"}}
			}
		}
		return true
	})
	return edits
}

func apply(src string, edits []edit) (string, error) {
	if len(edits) == 0 {
		return "", fmt.Errorf("nothing on its line can be left out: the row names a part")
	}
	slices.SortFunc(edits, func(a, b edit) int { return cmp.Compare(b.start, a.start) })
	for _, e := range edits {
		src = src[:e.start] + e.text + src[e.end:]
	}
	return src, nil
}

func TestRemove(t *testing.T) {
	const source = `package p

func f(a, b bool, s []string) error {
	if a && b { // guard: x: both; x: second
		return nil
	} else if s != nil || // guard: x: list
		b {
		g(s,
			a) // guard: x: not its first line
	}
	// Why.
	// guard: x: why
	// guard: x: call
	g(s, a)
	switch {
	case a: // guard: x: case
	}
	return h(unix.A | unix.B).Strict() // guard: x: flag; x: strict; x: return
}
`
	for _, test := range []struct {
		row       []string
		old, with string // an empty text: refused
	}{
		{[]string{"x: both", ""}, "if a && b {", "if (a && b) && false {"},
		{[]string{"x: second", "", "b"}, "if a && b {", "if a && ((b) || true) {"},
		{[]string{"x: list", "", "s != nil"}, "s != nil ||", "((s != nil) && false) ||"},
		{[]string{"x: list", "", "s", "nil"}, "s != nil ||", ""},
		{[]string{"x: list", "", "s !", "nil ="}, "s != nil", "nil == nil"},
		{[]string{"x: not its first line", ""}, "", ""},
		{[]string{"x: call", ""}, "\tg(s, a)", "\tif false { g(s, a) }"},
		{[]string{"x: why", ""}, "\tg(s, a)", "\tif false { g(s, a) }"},
		{[]string{"x: case", ""}, "case a:", "case (a) && false:"},
		{[]string{"x: flag", "", "unix.A"}, "unix.A |", "((unix.A) & 0) |"},
		{[]string{"x: strict", "", ".Strict()"}, ".Strict()", ""},
		{[]string{"x: return", ""}, "", ""},
		{[]string{"x: return", "", "x: flag"}, "", ""},
		{[]string{"x: none", ""}, "", ""},
	} {
		want := ""
		if test.old != "" && (test.with != "" || test.row[0] == "x: strict") {
			want = strings.Replace(source, test.old, test.with, 1)
		}
		if got, err := remove(source, test.row); got != want || (err == nil) != (want != "") {
			t.Errorf("%q: %v\n%s", test.row, err, got)
		}
	}
	for _, comment := range []string{"//guard: x: y", "// Why, guard: x: y", "// guard:x: y"} {
		if _, err := remove("package p\n\n"+comment+"\nvar x int\n", []string{"x: y", "", "int", "int8"}); err == nil {
			t.Errorf("%q is a mark", comment)
		}
	}
}
