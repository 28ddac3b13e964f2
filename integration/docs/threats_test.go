package docs

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

var (
	threat = regexp.MustCompile(`T\d\d`)
	// A test's name is TestT21T22Hooks…, a subtest's "T21 T22 hooks …".
	testName    = regexp.MustCompile(`^Test((?:T\d\d)+)[A-Z]`)
	subtestName = regexp.MustCompile(`^((?:T\d\d )+)\S`)
)

// threatsOfPage returns the numbers of the table of threats.
func threatsOfPage(text string) map[string]bool {
	numbers := map[string]bool{}
	for _, row := range rows(text, "Threat") {
		number, _, _ := strings.Cut(row[0], " ")
		numbers[number] = true
	}
	return numbers
}

// threatsOfTests adds the numbers in the names of a test file's tests and subtests, with the file.
// Names of subtests are found where they are written: in a string that begins with a number.
func threatsOfTests(numbers map[string]string, name string, source any) error {
	file, err := parser.ParseFile(token.NewFileSet(), name, source, parser.SkipObjectResolution)
	if err != nil {
		return err
	}
	add := func(text string) {
		for _, number := range threat.FindAllString(text, -1) {
			numbers[number] = name
		}
	}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncDecl:
			if m := testName.FindStringSubmatch(n.Name.Name); m != nil && n.Recv == nil {
				add(m[1])
			}
		case *ast.BasicLit:
			if text, err := strconv.Unquote(n.Value); err == nil && n.Kind == token.STRING {
				if m := subtestName.FindStringSubmatch(text); m != nil {
					add(m[1])
				}
			}
		}
		return true
	})
	return nil
}

// compareThreats lists the numbers that only the page or only the tests have.
func compareThreats(page map[string]bool, tests map[string]string) []string {
	var wrong []string
	for _, number := range slices.Sorted(maps.Keys(page)) {
		if tests[number] == "" {
			wrong = append(wrong, number+" of docs/threat-model.md is in no test's name")
		}
	}
	for _, number := range slices.Sorted(maps.Keys(tests)) {
		if !page[number] {
			wrong = append(wrong, fmt.Sprintf("%s in a name in %s is not in docs/threat-model.md", number, tests[number]))
		}
	}
	return wrong
}

func TestEveryThreatHasATestAndEveryTestItsThreat(t *testing.T) {
	tests := map[string]string{}
	err := filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && name != root && strings.HasPrefix(d.Name(), ".") {
			return fs.SkipDir
		}
		// This file's own names are examples.
		if err != nil || !strings.HasSuffix(name, "_test.go") || d.Name() == "threats_test.go" {
			return err
		}
		return threatsOfTests(tests, name, nil)
	})
	if err != nil {
		t.Fatal(err)
	}
	page := threatsOfPage(page(t, "docs/threat-model.md"))
	if len(page) < 70 {
		t.Fatalf("the page has %d threats: the test looks for the wrong thing", len(page))
	}
	for _, line := range compareThreats(page, tests) {
		t.Error(line)
	}
}

func TestThreatsWithoutTestsAreFound(t *testing.T) {
	page := threatsOfPage("| Threat | Answer |\n|---|---|\n| T01 a | b |\n| T02 c, and not T09 | d |\n| T03 e | f |\n| T04 g | h |\n")
	tests := map[string]string{}
	source := `package x
// T04: a comment is no name.
func TestT01T05Something(t *testing.T) { t.Run("T02 a "+name, nil); t.Log("after T04 there is more") }
func (s) TestT03Method() {}
`
	if err := threatsOfTests(tests, "x_test.go", source); err != nil {
		t.Fatal(err)
	}
	want := []string{
		"T03 of docs/threat-model.md is in no test's name", "T04 of docs/threat-model.md is in no test's name",
		"T05 in a name in x_test.go is not in docs/threat-model.md",
	}
	if got := compareThreats(page, tests); !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}
