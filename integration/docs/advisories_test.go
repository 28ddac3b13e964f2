package docs

import (
	commandline "flag"
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
	want := "\n" + advisories.Markdown() + "\n"
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
