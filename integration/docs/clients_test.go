package docs

import (
	"path"
	"regexp"
	"strings"
	"testing"
)

var (
	namedTest = regexp.MustCompile(`\[(Test\w+)\]\(([^)]+)\)([^;|]*)`)
	buildTag  = regexp.MustCompile(`(?m)^//go:build (\w+)$`)
)

// Each row of the clients has a test in the file that it links to, and says how to run it.
func TestEveryWayToAskHasItsTest(t *testing.T) {
	list := rows(page(t, "docs/clients.md"), "Client")
	if len(list) < 15 {
		t.Fatalf("%d rows: the test looks for the wrong thing", len(list))
	}
	before := ""
	for _, row := range list {
		last := row[len(row)-1]
		tests := namedTest.FindAllStringSubmatch(last, -1)
		if len(row) != 5 || len(tests) == 0 && (last != "the same" || before == "") {
			t.Errorf("no test: %q", row)
		}
		for _, m := range tests {
			text := page(t, path.Join("docs", m[2]))
			if !strings.Contains(text, "\nfunc "+m[1]+"(t *testing.T) {\n") {
				t.Errorf("%s has no %s", m[2], m[1])
			}
			want := ""
			if tag := buildTag.FindStringSubmatch(text); tag != nil {
				want = " (`make test-" + tag[1] + "`)"
			}
			if got := strings.TrimRight(m[3], " "); got != want {
				t.Errorf("%s is run by%q, not by%q", m[1], want, got)
			}
		}
		before = last
	}
}
