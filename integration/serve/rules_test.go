package serve

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"testing"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/images"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testtree"
)

// The alerts of the chart, by Prometheus' own promtool.
func TestEachAlertFiresWhenItShould(t *testing.T) {
	dir := t.TempDir()
	root, err := images.UnpackPackages(dir, []string{"prometheus"})
	testtree.Check(t, err)
	var named [2][]string
	for i, name := range []string{filepath.Join(chartFiles, "rules.yaml"), "testdata/rules_test.yaml"} {
		text, err := os.ReadFile(name)
		testtree.Check(t, err)
		testtree.Check(t, os.WriteFile(filepath.Join(dir, filepath.Base(name)), text, 0o600))
		for _, m := range regexp.MustCompile(`(?m)\b(?:alert|alertname): (\w+)$`).FindAllStringSubmatch(string(text), -1) {
			named[i] = append(named[i], m[1])
		}
	}
	if !slices.Equal(named[0], named[1]) || len(named[0]) == 0 {
		t.Errorf("the rules have the alerts %q, the test has %q", named[0], named[1])
	}
	for _, args := range [][]string{{"check", "rules", "--lint=all", "--lint-fatal", "rules.yaml"}, {"test", "rules", "rules_test.yaml"}} {
		cmd := exec.Command(root+"/usr/bin/promtool", args...)
		cmd.Dir = dir
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("promtool %q: %v\n%s", args, err, out)
		}
	}
}
