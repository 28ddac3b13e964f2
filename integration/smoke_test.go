package integration

import (
	"strings"
	"testing"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testenv"
)

// The main job: the first sentence of the README.
func TestNvidiaSmiListsTheGrantedGPU(t *testing.T) {
	testenv.EachCgroup(t, func(t *testing.T, version int) {
		h := newHost(t, hostOptions{testenv: testenv.Options{Cgroup: version}})
		image := h.image(t, "debian12")
		out := h.MustRun(t, testenv.RunOptions{
			Runtime: "io.containerd.nvidia.v2", Image: image,
			Env: []string{"NVIDIA_VISIBLE_DEVICES=0"}, Args: []string{"nvidia-smi", "-L"},
		})
		if want := "GPU 0: NVIDIA H200 (UUID: " + h.Driver.GPUs[0].UUID + ")"; strings.TrimSpace(out) != want {
			t.Errorf("got %q, want %q", out, want)
		}
	})
}
