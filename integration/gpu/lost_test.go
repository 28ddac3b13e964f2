//go:build gpu

package gpu

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testenv"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testenv/mounts"
)

// NVML says that one GPU is lost: a container of another one starts, also if NVML must decide a
// requirement, and a container of the lost one is refused by its name. The driver itself is
// untouched: a library in the program that asks NVML answers for it.
func TestALostGPUTakesNoOtherAlong(t *testing.T) {
	gpus := hostGPUs(t)
	if len(gpus) < 2 {
		t.Skip("NOT TESTED: this host has one GPU")
	}
	env := newEnvFrom(t, "", programsThatLose(t, "1"))
	const needsNVML = "NVIDIA_REQUIRE_ARCH=arch>=5.0"
	for _, visible := range []string{"0", gpus[0].UUID} {
		if out := env.MustRun(t, script(env, visible, "nvidia-smi -L", needsNVML)); out != gpus[0].Line+"\n" {
			t.Errorf("%s: %q", visible, out)
		}
	}
	r := env.Run(t, script(env, "1", "true", needsNVML))
	for _, word := range []string{"GPU 1", "GPU is lost"} {
		if r.ExitCode == 0 || !strings.Contains(r.Error, word) {
			t.Errorf("GPU 1: exit status %d, %s; want %q", r.ExitCode, r.Error, word)
		}
	}
}

// programsThatLose is a directory with the shim's programs, of which the one that asks NVML finds
// the GPU of this index lost.
func programsThatLose(t *testing.T, index string) string {
	t.Helper()
	compiled, err := compiled()
	if err != nil {
		t.Fatal(err)
	}
	dir := mounts.TempDir(t)
	for _, name := range []string{"containerd-shim-nvidia-v2", "nvidia-shimctl"} {
		data, err := os.ReadFile(filepath.Join(testenv.ShimDir(), name))
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name), data, 0o755)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	text := fmt.Sprintf("#!/bin/sh\nexport LOST=%s LD_PRELOAD=%s\nexec %s\n", index,
		filepath.Join(compiled, LostLibrary), filepath.Join(testenv.ShimDir(), "nvidia-shim-nvml"))
	if err := os.WriteFile(filepath.Join(dir, "nvidia-shim-nvml"), []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}
