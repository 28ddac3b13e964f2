package docs

import (
	commandline "flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/advisories"
)

var writeAdvisories = commandline.Bool("advisories", false, "write the table of advisories of docs/security.md")

// The notes of a release have this part of the page, too.
func TestTheTableOfAdvisoriesIsThePages(t *testing.T) {
	const name, begin, end = "docs/security.md", "<!-- begin advisories -->\n", "<!-- end advisories -->\n"
	text := page(t, name)
	before, rest, ok := strings.Cut(text, begin)
	have, after, closed := strings.Cut(rest, end)
	if !ok || !closed {
		t.Fatalf("%s lacks %s or %s", name, begin, end)
	}
	want := "\n" + advisoryTable() + "\n"
	if *writeAdvisories {
		if err := os.WriteFile(filepath.Join(root, name), []byte(before+begin+want+end+after), 0o644); err != nil {
			t.Error(err)
		}
	} else if have != want {
		t.Errorf("%s is out of date: go test ./integration/docs -run Advisories -advisories", name)
	}
	if !strings.Contains(page(t, ".github/workflows/release.yml"), "/begin advisories/,/end advisories/") {
		t.Error("the notes of a release lack the table")
	}
}

// advisoryTable returns the table for a page, without a heading.
func advisoryTable() string {
	var b strings.Builder
	fmt.Fprintf(&b, "Sources read on %s.\n\n|Component|Advisory|Class|Effect|Fixed in|\n|---|---|---|---|---|\n", advisories.Reviewed)
	for _, a := range advisories.Table {
		effect, fixed := a.Effect, strings.Join(a.Fixed, ", ")
		if effect == "" {
			effect = "not published"
		}
		if len(a.Kernels) > 0 {
			effect += fmt.Sprintf(", on kernels from %s to before %s", a.Kernels[0], a.Kernels[1])
		}
		if a.Since != "" {
			fixed += "; not before " + a.Since
		}
		if len(a.Fixed) == 0 {
			fixed = "no fixed version known"
		}
		fmt.Fprintf(&b, "|%s|[%s](%s)|%s|%s|%s|\n", a.Component, a.ID, a.Source, a.Class, effect, fixed)
	}
	return b.String()
}
