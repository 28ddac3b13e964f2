package docs

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// verb is a verb of package fmt. In the pages the user's value at its place is "…".
var verb = regexp.MustCompile(`%[-+# 0]*[0-9]*(\.[0-9]+)?[a-zA-Z]`)

// literals are the strings of the product's sources with verbs as "…". required
// are those that fail a create and are more than a cause passed on.
func literals(t *testing.T) (all, required []string) {
	t.Helper()
	for _, dir := range []string{"shim", "gpuinject", "cdispec", "kubelet", "migrate", "prepare", "runtimeclass", "cmd", "nvml"} {
		err := filepath.WalkDir(filepath.Join(root, dir), func(name string, _ fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go") {
				return err
			}
			file, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
			if err != nil {
				return err
			}
			ast.Inspect(file, func(n ast.Node) bool {
				if text, ok := stringOf(n); ok {
					all = append(all, text)
				}
				call, ok := n.(*ast.CallExpr)
				if !ok || len(call.Args) < 2 {
					return true
				}
				kind, _ := call.Args[0].(*ast.Ident)
				if f, ok := call.Fun.(*ast.Ident); !ok || f.Name != "fail" || kind == nil || kind.Name == "Internal" {
					return true
				}
				if text, ok := stringOf(call.Args[1]); ok && len(constant(text)) > minConstant {
					required = append(required, text)
				}
				return true
			})
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return all, required
}

func stringOf(n ast.Node) (string, bool) {
	lit, ok := n.(*ast.BasicLit)
	if !ok || lit.Kind != token.STRING {
		return "", false
	}
	text, err := strconv.Unquote(lit.Value)
	if err != nil {
		return "", false
	}
	text = strings.ReplaceAll(text, "%%", "\x00")
	return strings.ReplaceAll(verb.ReplaceAllString(text, "…"), "\x00", "%"), true
}

// minConstant is how much of a message must not be a value, in bytes, so that a
// quotation means one message.
const minConstant = 7

func constant(text string) string {
	return strings.NewReplacer("…", "", " ", "", ":", "").Replace(text)
}

func TestQuotedMessagesAreInTheSources(t *testing.T) {
	all, required := literals(t)
	var quoted []string
	for _, row := range rows(page(t, "docs/troubleshooting.md"), "Message") {
		text := code(row[0])
		quoted = append(quoted, text)
		if len(row) != 3 || row[1] == "" || row[2] == "" {
			t.Errorf("docs/troubleshooting.md: %q has no cause or no fix", text)
		}
		if len(constant(text)) < minConstant {
			t.Errorf("docs/troubleshooting.md: %q says too little to be found", text)
		}
		if !slices.ContainsFunc(all, func(s string) bool { return strings.Contains(s, text) }) {
			t.Errorf("docs/troubleshooting.md: no source has %q", text)
		}
	}
	for _, text := range required {
		if !slices.ContainsFunc(quoted, func(q string) bool { return strings.Contains(text, q) }) {
			t.Errorf("docs/troubleshooting.md does not explain %q", text)
		}
	}
}
