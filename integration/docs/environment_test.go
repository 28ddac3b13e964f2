package docs

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
)

// The table of the contract and the table of the test are one: a case without a
// row is not documented, a row without a case is not tested.
func TestEnvironmentTableIsTheTestTable(t *testing.T) {
	text := page(t, "docs/environment.md")
	for _, tc := range []struct{ heading, file, function string }{
		{"NVIDIA_VISIBLE_DEVICES", "request/request_test.go", "TestVisibleDevices"},
		{"A CDI name", "request/cdi_test.go", "TestCDINames"},
		{"NVIDIA_DRIVER_CAPABILITIES", "request/request_test.go", "TestDriverCapabilities"},
		{"Other devices", "request/others_test.go", "TestOtherDevices"},
		{"Requirements", "requirements_test.go", "TestRequirements"},
		{"Rights over MIG", "request/mig_test.go", "TestRightsOverMIG"},
	} {
		t.Run(tc.heading, func(t *testing.T) {
			var documented []string
			for _, row := range rows(text, tc.heading) {
				documented = append(documented, row[0])
			}
			cases := caseNames(t, "gpuinject/"+tc.file, tc.function)
			if len(cases) == 0 || !slices.Equal(cases, documented) {
				t.Errorf("%s has the cases\n%q\ndocs/environment.md has the rows\n%q", tc.function, cases, documented)
			}
		})
	}
}

// caseNames are the first strings of the elements of the first table in a test.
func caseNames(t *testing.T, name, function string) []string {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), filepath.Join(root, name), nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, d := range file.Decls {
		f, ok := d.(*ast.FuncDecl)
		if !ok || f.Name.Name != function {
			continue
		}
		ast.Inspect(f, func(n ast.Node) bool {
			loop, ok := n.(*ast.RangeStmt)
			if !ok || names != nil {
				return names == nil
			}
			table, ok := loop.X.(*ast.CompositeLit)
			if !ok {
				return true
			}
			for _, e := range table.Elts {
				first, ok := e.(*ast.CompositeLit).Elts[0].(*ast.BasicLit)
				if !ok {
					t.Fatalf("%s: a case does not begin with its name", function)
				}
				name, err := strconv.Unquote(first.Value)
				if err != nil {
					t.Fatal(err)
				}
				names = append(names, name)
			}
			return false
		})
	}
	return names
}
