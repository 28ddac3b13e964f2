package advisories

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"testing"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/semver"
)

// Go modules of components.
var pinned = regexp.MustCompile(`(?m)^\t(github\.com/(?:containerd/containerd(?:/v2)?|opencontainers/runc)) (v\S+)`)

// What the shim embeds and what the tests run is at or above the fixes of its release line. The old
// runcs of the attacks are below it on purpose, and a line may have no fix.
func TestWhatIsBuiltHasTheFixes(t *testing.T) {
	const root = "../.."
	files := []string{root + "/go.mod", root + "/integration/tools/go.mod"}
	daemons, err := filepath.Glob(root + "/integration/daemons/*/go.mod")
	if err != nil || len(daemons) < 3 {
		t.Fatalf("%q, %v", daemons, err)
	}
	found := 0
	for _, file := range append(files, daemons...) {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range pinned.FindAllStringSubmatch(string(text), -1) {
			found++
			component := filepath.Base(filepath.Dir(m[1]))
			if component == "opencontainers" {
				component = Runc
			}
			v := parse(t, m[2])
			for _, a := range Check(component, v, semver.Version{Major: 7}) {
				if slices.ContainsFunc(a.Fixed, func(text string) bool {
					f := parse(t, text)
					return f.Major == v.Major && f.Minor == v.Minor
				}) {
					t.Errorf("%s: %s %s is affected by %s: use one of %q", file, component, v, a, a.Fixed)
				}
			}
		}
	}
	if found < 6 {
		t.Errorf("%d pins: the test looks for the wrong thing", found)
	}
}
