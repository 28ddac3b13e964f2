package node

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/check"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/runtimeclass"
)

// A node's pod checks the file that Docker reads. The rest is tested on a machine with systemd, in
// a container with the node's image.
func TestDockersRuntimesAreChecked(t *testing.T) {
	file := filepath.Join(t.TempDir(), "daemon.json")
	level := func() string {
		for _, f := range new(Keeper).check(t.Context(), runtimeclass.Options{Target: runtimeclass.Docker, ConfigFile: file}) {
			if f.Check == "handler" {
				return f.Level
			}
		}
		return ""
	}
	if got := level(); got != check.Problem {
		t.Errorf("without the file: %q", got)
	}
	if err := os.WriteFile(file, []byte(`{"runtimes": {"gpu": {"runtimeType": "io.containerd.nvidia.v2"}}}`), 0o755); err != nil {
		t.Fatal(err)
	}
	if got := level(); got != check.OK {
		t.Errorf("with a runtime: %q", got)
	}
}
