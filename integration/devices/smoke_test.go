package devices

import (
	"strings"
	"testing"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simhost"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testenv"
)

// The main job: the first sentence of the README.
func TestNvidiaSmiListsTheGrantedGPU(t *testing.T) {
	testenv.EachCgroup(t, func(t *testing.T, version int) {
		h := simhost.New(t, simhost.Options{Env: testenv.Options{Cgroup: version}})
		o := simhost.Visible("0")
		o.Args = []string{"nvidia-smi", "-L"}
		out := h.MustRun(t, o)
		if want := "GPU 0: NVIDIA H200 (UUID: " + h.Driver.GPUs[0].UUID + ")"; strings.TrimSpace(out) != want {
			t.Errorf("got %q, want %q", out, want)
		}
	})
}
