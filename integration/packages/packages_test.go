package packages

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// Two clean clones in different directories, one with an empty build cache, give the same bytes.
func TestTwoClonesGiveTheSamePackages(t *testing.T) {
	var sums []string
	for _, clone := range []struct{ dir, cache string }{{"a", ""}, {"another/directory", t.TempDir()}} {
		dir := filepath.Join(t.TempDir(), clone.dir)
		run(t, nil, "git", "clone", "-q", "../..", dir)
		var env []string
		if clone.cache != "" {
			env = []string{"GOCACHE=" + clone.cache}
		}
		run(t, env, "make", "-C", dir, "packages")
		run(t, nil, "sh", "-c", "cd \"$0\" && sha256sum --check --strict SHA256SUMS", filepath.Join(dir, "dist"))
		text, err := os.ReadFile(filepath.Join(dir, "dist/SHA256SUMS"))
		if err != nil {
			t.Fatal(err)
		}
		sums = append(sums, string(text))
	}
	if n := strings.Count(sums[0], "\n"); n != 6 {
		t.Errorf("%d files instead of tar.gz, deb and rpm for two architectures:\n%s", n, sums[0])
	}
	if sums[0] != sums[1] {
		t.Errorf("the second time:\n%sthe first time:\n%s", sums[1], sums[0])
	}
}

func run(t *testing.T, env []string, argv ...string) {
	t.Helper()
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Env = append(os.Environ(), env...)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%q: %v\n%s", argv, err, out)
	}
}
