package hosts

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simhost"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testenv"
)

// A host after a boot on which nothing made the nodes: the shim's refusal says what to
// run, and after that the same container has its GPU.
func TestPrepareMakesAHostReadyForContainers(t *testing.T) {
	h := simhost.New(t, simhost.Options{})
	dev := filepath.Join(h.Driver.DevRoot, "dev")
	names, err := filepath.Glob(filepath.Join(dev, "nvidia*"))
	if err != nil || len(names) < 7 {
		t.Fatalf("nodes of the driver: %q %v", names, err)
	}
	for _, name := range names {
		if err := os.RemoveAll(name); err != nil {
			t.Fatal(err)
		}
	}
	container := testenv.RunOptions{Env: []string{"NVIDIA_VISIBLE_DEVICES=1"}, Args: []string{"nvidia-smi", "-L"}}
	r := h.Run(t, container)
	if r.ExitCode == 0 || !strings.Contains(r.Error, `is missing: run "nvidia-shimctl prepare" on the host`) {
		t.Errorf("without nodes: exit status %d, %s", r.ExitCode, r.Error)
	}
	h.Ctl(t, "prepare")
	if out := h.MustRun(t, container); !strings.Contains(out, h.Driver.GPUs[1].UUID) || strings.Count(out, "UUID") != 1 {
		t.Errorf("got %q, want %s alone", out, h.Driver.GPUs[1].UUID)
	}
}
