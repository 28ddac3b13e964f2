package simhost

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testenv"
)

// RaceShim builds the shim with the race detector and returns the options that have containerd find
// it. When the test ends, each race that a shim reported fails it.
func RaceShim(t testing.TB) testenv.Options {
	t.Helper()
	root, err := testenv.ModuleRoot()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	cmd := exec.Command("go", "build", "-race", "-tags", "no_grpc", "-o", dir, "./cmd/containerd-shim-nvidia-v2")
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "CGO_ENABLED=1")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build the shim with the race detector: %v\n%s", err, out)
	}
	reports := filepath.Join(t.TempDir(), "race")
	t.Cleanup(func() {
		found, err := filepath.Glob(reports + ".*")
		if err != nil {
			t.Error(err)
		}
		for _, name := range found {
			data, _ := os.ReadFile(name)
			t.Errorf("the race detector found:\n%s", data)
		}
	})
	// The detector's default is to wait for a second when a process ends.
	return testenv.Options{ShimDir: dir, Env: []string{"GORACE=atexit_sleep_ms=0 log_path=" + reports}}
}
