package guards

import (
	"encoding/json"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// root is the repository.
const root = "../.."

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// overlay writes an overlay for the go command in which the guards are removed, and returns its
// name.
func overlay(t *testing.T, list ...guard) string {
	t.Helper()
	dir := t.TempDir()
	sources := map[string]string{}
	for _, g := range list {
		if _, ok := sources[g.file]; !ok {
			data, err := os.ReadFile(filepath.Join(root, g.file))
			check(t, err)
			sources[g.file] = string(data)
		}
		if n := strings.Count(sources[g.file], g.old); n != 1 {
			t.Errorf("%s: %s has %q %d times", g.name, g.file, g.old, n)
		}
		sources[g.file] = strings.Replace(sources[g.file], g.old, g.new, 1)
	}
	replace := map[string]string{}
	for file, text := range sources {
		name, err := filepath.Abs(filepath.Join(root, file))
		check(t, err)
		replace[name] = filepath.Join(dir, strings.ReplaceAll(file, "/", "_"))
		check(t, os.WriteFile(replace[name], []byte(text), 0o644))
	}
	data, err := json.Marshal(map[string]any{"Replace": replace})
	check(t, err)
	name := filepath.Join(dir, "overlay.json")
	check(t, os.WriteFile(name, data, 0o644))
	return name
}

func TestTheTableFitsTheSource(t *testing.T) {
	packages := []string{}
	for _, g := range guards {
		overlay(t, g)
		if dir := "./" + filepath.Dir(g.file); !slices.Contains(packages, dir) {
			packages = append(packages, dir)
		}
	}
	if t.Failed() {
		return
	}
	cmd := exec.Command("go", append([]string{"build", "-overlay", overlay(t, guards...)}, packages...)...)
	cmd.Dir = root
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("without its guards the product does not compile: %v\n%s", err, out)
	}
}

func TestTheTestsExist(t *testing.T) {
	for _, g := range guards {
		dir, test := g.where()
		names, err := filepath.Glob(filepath.Join(root, dir, "*_test.go"))
		check(t, err)
		found := slices.ContainsFunc(names, func(name string) bool {
			file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
			check(t, err)
			return slices.ContainsFunc(file.Decls, func(d ast.Decl) bool {
				fn, ok := d.(*ast.FuncDecl)
				return ok && fn.Recv == nil && fn.Name.Name == test
			})
		})
		if !found {
			t.Errorf("%s: %s has no %s", g.name, dir, test)
		}
	}
}

// The page has a part for each area, in which guards with the same test share a line.
func TestThePageHasTheTable(t *testing.T) {
	const end = "|\n"
	var areas []string
	tables := map[string]string{}
	for _, g := range guards {
		_, test := g.where()
		area, rule, _ := strings.Cut(g.name, ": ")
		if tables[area] == "" {
			areas = append(areas, area)
			tables[area] = "|**" + area + "**||\n"
		}
		line := "|`" + test + "`|"
		if before, after, ok := strings.Cut(tables[area], line); ok {
			have, others, _ := strings.Cut(after, end)
			tables[area] = before + line + have + "; " + rule + end + others
		} else {
			tables[area] += line + rule + end
		}
	}
	table := "|Test|Fails without|\n|---|---|\n"
	for _, area := range areas {
		table += tables[area]
	}
	page, err := os.ReadFile(filepath.Join(root, "docs/guards.md"))
	check(t, err)
	if !strings.HasSuffix(string(page), "\n\n"+table) {
		t.Errorf("docs/guards.md must end with this table:\n%s", table)
	}
}
