package runtimeclass

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// daemonFiles are those of the daemons.
var daemonFiles = []string{"containerd.go", "docker.go", "k3s.go", "kind.go"}

// No code but a daemon's own file asks which daemon it has: Daemon has what differs.
func TestNoCodeBranchesOnADaemon(t *testing.T) {
	var names []string
	for _, d := range Daemons() {
		names = append(names, d.Name)
	}
	files := 0
	for _, dir := range []string{"cmd", "gpuinject", "internal", "runtimeclass", "shim"} {
		check(t, filepath.WalkDir(filepath.Join("..", dir), func(name string, _ fs.DirEntry, err error) error {
			own := dir == "runtimeclass" && slices.Contains(daemonFiles, filepath.Base(name))
			if err != nil || own || !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go") {
				return err
			}
			files++
			set := token.NewFileSet()
			file, err := parser.ParseFile(set, name, nil, parser.SkipObjectResolution)
			check(t, err)
			for _, at := range branches(file, names) {
				t.Errorf("%s branches on a daemon's name", set.Position(at))
			}
			return nil
		}))
	}
	if files < 100 {
		t.Errorf("%d files: the test looks for the wrong thing", files)
	}
}

// branches returns where a file compares with one of the names.
func branches(file *ast.File, names []string) (found []token.Pos) {
	flag := func(list ...ast.Expr) {
		for _, e := range list {
			if isName(e, file.Name.Name, names) {
				found = append(found, e.Pos())
			}
		}
	}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.BinaryExpr:
			if n.Op == token.EQL || n.Op == token.NEQ {
				flag(n.X, n.Y)
			}
		case *ast.CaseClause:
			flag(n.List...)
		case *ast.CallExpr: // slices.Contains([]string{...}, name), strings.HasPrefix(name, ...)
			if pkg, ok := n.Fun.(*ast.SelectorExpr); ok && slices.Contains([]string{"Contains", "HasPrefix", "Index", "EqualFold"}, pkg.Sel.Name) {
				flag(n.Args...)
				for _, arg := range n.Args {
					if list, ok := arg.(*ast.CompositeLit); ok {
						flag(list.Elts...)
					}
				}
			}
		}
		return true
	})
	return found
}

// isName reports whether an expression of a package is a daemon's name.
func isName(e ast.Expr, pkg string, names []string) bool {
	switch e := e.(type) {
	case *ast.BasicLit:
		text, err := strconv.Unquote(e.Value)
		return err == nil && slices.Contains(names, text)
	case *ast.Ident:
		return pkg == "runtimeclass" && (e.Name == "Containerd" || e.Name == "Docker")
	case *ast.SelectorExpr:
		of, ok := e.X.(*ast.Ident)
		return ok && of.Name == "runtimeclass" && (e.Sel.Name == "Containerd" || e.Sel.Name == "Docker")
	}
	return false
}
