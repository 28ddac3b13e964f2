package guards

import (
	"bytes"
	"encoding/json"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path"
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

// guard is a row of the table with the file that has its mark, and the package and name of its test.
type guard struct {
	name, file, dir, test string
	row                   []string
}

// load joins the rows of the table to the marks of the product.
func load(t *testing.T) []guard {
	t.Helper()
	files := markedFiles(t)
	var list []guard
	for _, row := range table {
		if len(row) < 2 || len(row) > 4 || files[row[0]] == "" {
			t.Errorf("%q: a row has two to four texts, and its guard one mark in the source", row)
			continue
		}
		dir, test, ok := strings.Cut(row[1], " ")
		if !ok {
			dir, test = path.Dir(files[row[0]]), dir
		}
		list = append(list, guard{row[0], files[row[0]], dir, test, row})
		delete(files, row[0])
	}
	for name, file := range files {
		t.Errorf("%s has a mark without a row: %s", file, name)
	}
	return list
}

// markedFiles returns the file of each guard that is marked.
func markedFiles(t *testing.T) map[string]string {
	t.Helper()
	files := map[string]string{}
	err := fs.WalkDir(os.DirFS(root), ".", func(name string, d fs.DirEntry, err error) error {
		switch {
		case err == nil && d.IsDir() && (name == "integration" || name == "bin" || name == ".git"):
			return fs.SkipDir
		case err != nil || path.Ext(name) != ".go" || strings.HasSuffix(name, "_test.go"):
			return err
		}
		source, err := os.ReadFile(filepath.Join(root, name))
		if err != nil || !bytes.Contains(source, []byte("guard:")) {
			return err
		}
		fset := token.NewFileSet()
		file, err := parser.ParseFile(fset, name, source, parser.ParseComments|parser.SkipObjectResolution)
		check(t, err)
		marks, err := findMarks(fset, file, string(source))
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		for _, m := range marks {
			if other := files[m.name]; other != "" {
				t.Errorf("%s and %s have the mark %q", other, name, m.name)
			}
			files[m.name] = name
		}
		return nil
	})
	check(t, err)
	return files
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
		source, err := remove(sources[g.file], g.row)
		if err != nil {
			t.Errorf("%s: %s: %v", g.name, g.file, err)
			continue
		}
		sources[g.file] = source
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
	guards, packages := load(t), []string{}
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
	for _, g := range load(t) {
		names, err := filepath.Glob(filepath.Join(root, g.dir, "*_test.go"))
		check(t, err)
		found := slices.ContainsFunc(names, func(name string) bool {
			file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
			check(t, err)
			return slices.ContainsFunc(file.Decls, func(d ast.Decl) bool {
				fn, ok := d.(*ast.FuncDecl)
				return ok && fn.Recv == nil && fn.Name.Name == g.test
			})
		})
		if !found {
			t.Errorf("%s: %s has no %s", g.name, g.dir, g.test)
		}
	}
}

// The page has a part for each area, in which guards with the same test share a line.
func TestThePageHasTheTable(t *testing.T) {
	const end = "|\n"
	var areas []string
	tables := map[string]string{}
	for _, g := range load(t) {
		area, rule, _ := strings.Cut(g.name, ": ")
		if tables[area] == "" {
			areas = append(areas, area)
			tables[area] = "|**" + area + "**||\n"
		}
		line := "|`" + g.test + "`|"
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
