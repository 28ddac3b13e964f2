package docs

import (
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// root is the repository.
const root = "../.."

// generated pages are made by a target and may be absent before it ran.
var generated = []string{"docs/benchmarks.md"}

// pages returns every page by its path in the repository.
func pages(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{}
	for _, pattern := range []string{"*.md", "docs/*.md"} {
		names, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			data, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			rel, err := filepath.Rel(root, name)
			if err != nil {
				t.Fatal(err)
			}
			all[rel] = string(data)
		}
	}
	for _, name := range []string{
		"README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md",
		"docs/architecture.md", "docs/configuration.md", "docs/contract.md", "docs/docker.md", "docs/environment.md", "docs/install.md", "docs/k3s.md",
		"docs/kind.md", "docs/kubernetes.md", "docs/security.md", "docs/shimctl.md", "docs/threat-model.md", "docs/troubleshooting.md",
	} {
		if all[name] == "" {
			t.Errorf("%s is missing or empty", name)
		}
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
			if _, err := os.Stat(filepath.Join(root, file)); err != nil && !slices.Contains(generated, file) {
				t.Errorf("%s: link to %s: %v", name, m[1], err)
			}
			if anchor != "" && all[file] != "" && !slices.Contains(anchors(all[file]), anchor) {
				t.Errorf("%s: link to %s: no such heading", name, m[1])
			}
		}
	}
}

// anchors are the names that a page's headings can be linked by: lower case,
// punctuation dropped, blanks as hyphens.
func anchors(text string) []string {
	var out []string
	for line := range strings.Lines(withoutBlocks(text)) {
		if !strings.HasPrefix(line, "#") {
			continue
		}
		heading := strings.ToLower(strings.TrimSpace(strings.TrimLeft(line, "#")))
		heading = strings.Map(func(r rune) rune {
			switch {
			case r == ' ' || r == '-':
				return '-'
			case r == '_' || 'a' <= r && r <= 'z' || '0' <= r && r <= '9':
				return r
			}
			return -1
		}, heading)
		out = append(out, heading)
	}
	return out
}

var block = regexp.MustCompile("(?ms)^```.*?^```$")

func withoutBlocks(text string) string { return block.ReplaceAllString(text, "") }

var (
	inlineMake = regexp.MustCompile("`(?:sudo )?make((?: [a-z][a-z-]*)*)`")
	blockMake  = regexp.MustCompile(`(?m)^(?:[$#] )?(?:sudo )?make((?: [a-z][a-z-]*)*)$`)
	target     = regexp.MustCompile(`(?m)^([a-z][a-z-]*):`)
)

func TestMakeTargetsExist(t *testing.T) {
	var targets []string
	for _, m := range target.FindAllStringSubmatch(page(t, "Makefile"), -1) {
		targets = append(targets, m[1])
	}
	named := 0
	for name, text := range pages(t) {
		uses := inlineMake.FindAllStringSubmatch(text, -1)
		for _, b := range block.FindAllString(text, -1) {
			uses = append(uses, blockMake.FindAllStringSubmatch(b, -1)...)
		}
		for _, m := range uses {
			for _, use := range strings.Fields(m[1]) {
				named++
				if !slices.Contains(targets, use) {
					t.Errorf("%s: `make %s`: no such target", name, use)
				}
			}
		}
	}
	if named == 0 {
		t.Error("no page names a target: the test looks for the wrong thing")
	}
}

// sourceFile is a file of the sources as pages name it: by its path in the repository.
var sourceFile = regexp.MustCompile("`([a-z][-a-z0-9_/]*/[-a-z0-9_]+\\.go)`")

func TestSourceFilesThatPagesNameExist(t *testing.T) {
	named := 0
	for name, text := range pages(t) {
		for _, m := range sourceFile.FindAllStringSubmatch(text, -1) {
			named++
			if _, err := os.Stat(filepath.Join(root, m[1])); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
	if named == 0 {
		t.Error("no page names a file: the test looks for the wrong thing")
	}
}

func TestNothingOfOneMachineIsInThePages(t *testing.T) {
	bad := regexp.MustCompile(`/wor[k]/|/roo[t]/|/home/[^k]|\bTODO\b|\bFIXME\b|\bXXX\b|\bTBD\b`)
	for name, text := range pages(t) {
		if m := bad.FindString(text); m != "" {
			t.Errorf("%s has %q", name, m)
		}
		for _, r := range text {
			if r >= 0x1F000 || 0x2600 <= r && r <= 0x27BF {
				t.Errorf("%s has the pictogram %q", name, r)
			}
		}
	}
}

// rows returns the cells of the tables of a page whose first heading is the given
// one.
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
		case in && strings.Trim(cells[0], "-: ") != "":
			out = append(out, cells)
		}
	}
	return out
}

// code takes the backquotes off a cell that is one piece of code.
func code(cell string) string {
	return strings.TrimSuffix(strings.TrimPrefix(cell, "`"), "`")
}
