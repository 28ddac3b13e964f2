package docs

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// The limit of the binary is the Makefile's, which fails a build beyond it.
func TestTheBenchmarksHaveTheLimitOfTheBinary(t *testing.T) {
	limit, err := strconv.Atoi(regexp.MustCompile(`(?m)^MAX_SHIM_BYTES := (\d+)$`).FindStringSubmatch(page(t, "Makefile"))[1])
	if err != nil {
		t.Fatal(err)
	}
	want := fmt.Sprintf("≤ %.2f MB", float64(limit)/1e6)
	found := 0
	for line := range strings.Lines(page(t, "docs/benchmarks.md")) {
		if !strings.HasPrefix(line, "| binary |") {
			continue
		}
		if found++; !strings.Contains(line, want) {
			t.Errorf("no %s in %s", want, line)
		}
	}
	if found == 0 {
		t.Error("no row for the binary")
	}
}
