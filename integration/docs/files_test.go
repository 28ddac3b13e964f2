package docs

import (
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// A reader can go from file to file of a package and never has to come back.
func TestArrowsAmongFilesPointDown(t *testing.T) {
	packages := map[string][]string{}
	for _, name := range sources(t) {
		packages[filepath.Dir(name)] = append(packages[filepath.Dir(name)], name)
	}
	for dir, files := range packages {
		needs := needs(t, files)
		for _, file := range slices.Sorted(maps.Keys(needs)) {
			if slices.ContainsFunc(slices.Collect(maps.Keys(needs[file])), func(next string) bool { return leads(needs, next, file, map[string]bool{}) }) {
				t.Errorf("%s: %s.go and files that it needs, %v, need each other: move what they share below both", dir, file, needs[file])
			}
		}
	}
}

// leads reports whether one file needs another, by whatever way, or is the other.
func leads(needs map[string]map[string]string, from, to string, seen map[string]bool) bool {
	if from == to || seen[from] {
		return from == to
	}
	seen[from] = true
	for next := range needs[from] {
		if leads(needs, next, to, seen) {
			return true
		}
	}
	return false
}

// needs are the files of a package that each of its files needs, with the name of something there.
func needs(t *testing.T, names []string) map[string]map[string]string {
	t.Helper()
	set, files := token.NewFileSet(), []*ast.File{}
	for _, name := range names {
		file, err := parser.ParseFile(set, filepath.Join("../..", name), nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, file)
	}
	info := types.Info{Uses: map[*ast.Ident]types.Object{}}
	// The errors are about other packages, whose types are not needed.
	config := types.Config{Importer: noImports{}, FakeImportC: true, Error: func(error) {}}
	pkg, _ := config.Check(names[0], set, files, &info)
	needs := map[string]map[string]string{}
	for ident, object := range info.Uses {
		if object.Pkg() != pkg || !object.Pos().IsValid() {
			continue
		}
		from, to := fileOf(set, ident.Pos()), fileOf(set, object.Pos())
		if needs[from] == nil {
			needs[from] = map[string]string{}
		}
		if from != to {
			needs[from][to] = object.Name()
		}
	}
	return needs
}

func fileOf(set *token.FileSet, pos token.Pos) string {
	return strings.TrimSuffix(filepath.Base(set.Position(pos).Filename), ".go")
}

type noImports struct{}

func (noImports) Import(path string) (*types.Package, error) {
	return types.NewPackage(path, filepath.Base(path)), nil
}
