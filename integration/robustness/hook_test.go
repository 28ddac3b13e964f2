package robustness

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simhost"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testenv"
)

// placeHook builds NVIDIA's hook and describes a CDI device that has it for GPU 0.
func (h *host) placeHook(t *testing.T) (device string) {
	t.Helper()
	hook := filepath.Join(t.TempDir(), "nvidia-cdi-hook")
	build := exec.Command("go", "build", "-trimpath", "-o", hook, "github.com/NVIDIA/nvidia-container-toolkit/cmd/nvidia-cdi-hook")
	build.Dir = "../tools/nvidia-ctk"
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	const dir, kind = "/run/cdi", "shim.example/memory"
	testenv.ShareForTest(t, dir)
	name := filepath.Join(dir, "shim.example-memory.json")
	writeFile(t, name, fmt.Appendf(nil, `{"cdiVersion": "0.6.0", "kind": %q, "devices": [{"name": "0", "containerEdits": {"hooks": [{
		"hookName": "createRuntime", "path": %q, "env": ["NVIDIA_SIM_DEV=%s/dev"],
		"args": ["nvidia-cdi-hook", "apply-cuda-memory-limits", "--driver-root", %q, "--gpu-id", %q]}]}}]}`,
		kind, hook, h.Driver.DevRoot, h.Driver.Root, h.Driver.GPUs[0].UUID), 0o644)
	t.Cleanup(func() { os.Remove(name) })
	return kind + "=0"
}

// NVIDIA's hook, with the stock shim, and this shim do the same with NVIDIA's variables where the hook
// accepts them. What the hook leaves in the cgroups above is for good.
func TestBesideNVIDIAsHook(t *testing.T) {
	h := newLimitedHost(t, "dmem")
	device := h.placeHook(t)
	const limit, request, refused = "NVIDIA_GPU_MEMORY_LIMIT=", "NVIDIA_GPU_MEMORY_REQUEST=", "refused"
	for _, c := range []struct {
		env        []string
		hook, ours string // request and limit in MiB
		left       bool   // by the hook
	}{
		{[]string{limit + "1024"}, "1024 1024", "1024 1024", true},
		{[]string{request + "1024"}, "1024 none", "1024 none", true},
		{[]string{limit + "1024", request + "512"}, "512 1024", "512 1024", true},
		{[]string{limit + "1024", request + "0"}, "0 1024", "0 1024", false},
		{[]string{limit + "512", request + "1024"}, refused, refused, false},
		{[]string{limit + "1.5Gi"}, refused, "1536 1536", false},
		{[]string{limit}, refused, refused, false},
		{[]string{limit + "0"}, "0 0", refused, false},
	} {
		run := func(what, want string, o testenv.RunOptions) (left []string) {
			t.Helper()
			o.ID, o.Detach, o.Args = h.NewID(), true, []string{"/bin/sleep", "600"}
			got := refused
			if r, err := h.TryRun(t, o); err == nil && r.ExitCode == 0 {
				own, _ := h.limits(t, o.ID)
				got = strings.Join(own, ", ")
			}
			h.Gone(t, o.ID)
			if got != want {
				t.Errorf("%q, %s: %s, want %s", c.env, what, got, want)
			}
			_, left = h.limits(t, o.ID)
			return left
		}
		left := run("NVIDIA's hook", c.hook, testenv.RunOptions{Runtime: testenv.StockRuntime, Env: c.env, Extra: []string{"--device", device}})
		if len(left) > 0 != c.left {
			t.Errorf("%q: NVIDIA's hook leaves %q", c.env, left)
		}
		if err := h.Driver.Reset(h.Driver.GPUs[0].UUID); err != nil {
			t.Fatal(err)
		}
		run("this shim", c.ours, simhost.Visible("0", c.env...))
		h.nothingLimited(t, fmt.Sprint(c.env))
	}
}
