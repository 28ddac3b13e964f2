package docs

import (
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

// root is the repository.
const root = "../.."

// pages returns every page by its path in the repository.
func pages(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{}
	for _, pattern := range []string{"*.md", "docs/*.md", "deploy/helm/*/*.md"} {
		names, err := fs.Glob(os.DirFS(root), pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			all[name] = page(t, name)
		}
	}
	if len(all) < 10 {
		t.Fatalf("%d pages: the test looks in the wrong place", len(all))
	}
	return all
}

// page returns one page.
func page(t *testing.T, name string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(root, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

var link = regexp.MustCompile(`\]\(([^)\s]+)\)`)

func TestLinksResolve(t *testing.T) {
	all := pages(t)
	for name, text := range all {
		for _, m := range link.FindAllStringSubmatch(text, -1) {
			target, anchor, _ := strings.Cut(m[1], "#")
			if strings.Contains(target, "://") {
				continue
			}
			file := name
			if target != "" {
				file = path.Join(path.Dir(name), target)
			}
			if _, err := os.Stat(filepath.Join(root, file)); err != nil {
				t.Errorf("%s: link to %s: %v", name, m[1], err)
			}
			if anchor != "" && all[file] != "" && !slices.Contains(anchors(all[file]), anchor) {
				t.Errorf("%s: link to %s: no such heading", name, m[1])
			}
		}
	}
}

var source = regexp.MustCompile("`((?:cmd|docs|gpuinject|integration|internal|runtimeclass|shim)/[^` *]+)`")

func TestNamedFilesExist(t *testing.T) {
	for name, text := range pages(t) {
		for _, m := range source.FindAllStringSubmatch(text, -1) {
			if _, err := os.Stat(filepath.Join(root, m[1])); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
}

var dropped = regexp.MustCompile(`[^-_ a-z0-9]`)

// anchors are the names that a page's headings can be linked by: lower case,
// punctuation dropped, blanks as hyphens.
func anchors(text string) []string {
	var out []string
	for line := range strings.Lines(withoutBlocks(text)) {
		if !strings.HasPrefix(line, "#") {
			continue
		}
		heading := strings.ToLower(strings.TrimSpace(strings.TrimLeft(line, "#")))
		out = append(out, strings.ReplaceAll(dropped.ReplaceAllString(heading, ""), " ", "-"))
	}
	return out
}

var (
	block     = regexp.MustCompile("(?ms)^```.*?^```$")
	inline    = regexp.MustCompile("`[^`\n]+`")
	generated = regexp.MustCompile("(?ms)^<!-- begin .*?^<!-- end .*?$")
)

func withoutBlocks(text string) string { return block.ReplaceAllString(text, "") }

var (
	typedMake = regexp.MustCompile("(?m)(?:`|^[#$] )make((?: [a-z][a-z-]*)+)(?:`| [A-Z]|$)")
	target    = regexp.MustCompile(`(?m)^([a-z][a-z-]*):`)
)

func TestMakeTargetsExist(t *testing.T) {
	var targets []string
	for _, m := range target.FindAllStringSubmatch(page(t, "Makefile"), -1) {
		targets = append(targets, m[1])
	}
	for name, text := range pages(t) {
		for _, m := range typedMake.FindAllStringSubmatch(text, -1) {
			for use := range strings.FieldsSeq(m[1]) {
				if !slices.Contains(targets, use) {
					t.Errorf("%s: `make %s`: no such target", name, use)
				}
			}
		}
	}
}

func TestNothingOfOneMachineIsInThePages(t *testing.T) {
	bad := regexp.MustCompile(`/wor[k]/|/roo[t]/|/home/[^k]|\bTODO\b|\bFIXME\b|\bXXX\b|\bTBD\b`)
	for name, text := range pages(t) {
		if m := bad.FindString(text); m != "" {
			t.Errorf("%s has %q", name, m)
		}
	}
}

// Tables, commands and generated parts cannot be wrapped, and targets of links are no text.
func TestProseIsWrapped(t *testing.T) {
	for name, text := range pages(t) {
		for line := range strings.Lines(generated.ReplaceAllString(withoutBlocks(text), "")) {
			line = link.ReplaceAllString(strings.TrimRight(line, "\n"), "]()")
			if utf8.RuneCountInString(line) > 100 && !strings.HasPrefix(line, "|") && strings.Contains(strings.TrimSpace(line), " ") {
				t.Errorf("%s: a line of %d columns: %.60s…", name, utf8.RuneCountInString(line), line)
			}
		}
	}
}

// rows returns the cells of the tables of a page whose first heading is the given one.
func rows(text, heading string) [][]string {
	var out [][]string
	in := false
	for line := range strings.Lines(withoutBlocks(text)) {
		line = strings.TrimSpace(line)
		if !strings.HasPrefix(line, "|") {
			in = false
			continue
		}
		var cells []string
		for _, cell := range strings.Split(strings.Trim(line, "|"), "|") {
			cells = append(cells, strings.TrimSpace(cell))
		}
		switch {
		case cells[0] == heading:
			in = true
		case in && (cells[0] == "" || strings.Trim(cells[0], "-: ") != ""):
			out = append(out, cells)
		}
	}
	return out
}

// code takes the backquotes off a cell that is one piece of code.
func code(cell string) string {
	return strings.TrimSuffix(strings.TrimPrefix(cell, "`"), "`")
}
