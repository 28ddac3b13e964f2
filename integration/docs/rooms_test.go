package docs

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

// rooms are facts that one file of the product writes down, and the other files take from there: the
// values of string literals, and calls.
var rooms = []struct {
	file string
	has  []string
}{
	{"gpuinject/config/capabilities.go", []string{`"compute"`, `"compat32"`, `"graphics"`, `"utility"`, `"video"`, `"display"`, `"ngx"`}},
	{"gpuinject/view/view.go", []string{`"/usr/local/nvidia"`}},
	{"gpuinject/grant/nvml.go", []string{`"nvml.json.lock"`}},
	{"internal/probe/server/lock.go", []string{`"nvml.lock"`}},
	{"internal/nvml/cuda.go", []string{"C.dlopen"}},
	{"internal/openat/openat.go", []string{"unix.Openat2", `"/proc/self/fd/"`}},
	{"internal/version/names.go", []string{`"containerd-shim-nvidia-v2"`, `"nvidia-shimctl"`, `"nvidia-shim-nvml"`}},
}

func TestOneFactHasOneRoom(t *testing.T) {
	room := map[string]string{}
	for _, r := range rooms {
		for _, fact := range r.has {
			room[fact] = r.file
		}
	}
	found := map[string]bool{}
	for _, name := range sources(t) {
		file, err := parser.ParseFile(token.NewFileSet(), filepath.Join("../..", name), nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			var fact string
			switch n := n.(type) {
			case *ast.BasicLit:
				if text, err := strconv.Unquote(n.Value); err == nil && n.Kind == token.STRING {
					fact = strconv.Quote(text)
				}
			case *ast.SelectorExpr:
				if x, ok := n.X.(*ast.Ident); ok {
					fact = x.Name + "." + n.Sel.Name
				}
			}
			switch want := room[fact]; {
			case want == name:
				found[fact] = true
			case want != "":
				t.Errorf("%s has %s: take it from %s", name, fact, want)
			}
			return true
		})
	}
	for fact, name := range room {
		if !found[fact] {
			t.Errorf("%s does not have %s", name, fact)
		}
	}
}

// sources are the files of the product, sorted.
func sources(t *testing.T) (names []string) {
	t.Helper()
	for _, top := range []string{"cmd", "gpuinject", "internal", "runtimeclass", "shim"} {
		err := filepath.WalkDir(filepath.Join("../..", top), func(path string, _ fs.DirEntry, err error) error {
			if strings.HasSuffix(path, ".go") && !strings.HasSuffix(path, "_test.go") {
				names = append(names, strings.TrimPrefix(path, "../../"))
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	slices.Sort(names)
	return names
}
