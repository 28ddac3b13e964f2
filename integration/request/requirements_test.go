package request

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simdriver/sim"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simhost"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testenv"
)

// What an image requires is checked on real creates, with the real probe asking the
// simulated NVML. GPU 1 is of another kind than GPU 0.
func TestRequirementsOfAnImageAreCheckedBeforeItStarts(t *testing.T) {
	h := simhost.New(t, simhost.Options{Driver: sim.Options{GPUs: 2, Models: map[int]sim.Model{1: {Brand: "geforcertx", Arch: "8.9"}}}})
	// As images of CUDA have it: a version that this host lacks, or a driver with
	// forward compatibility.
	const compat = "cuda>=13.5 brand=unknown,driver>=535,driver<536 brand=nvidia,driver>=580,driver<581"
	run := func(t *testing.T, env ...string) testenv.Result {
		t.Helper()
		return h.Run(t, testenv.RunOptions{Env: env, Args: []string{"nvidia-smi", "-L"}})
	}
	// The first container that needs it has NVML asked, and the answer is kept.
	kept := filepath.Join(h.Driver.StateDir, "nvml.json")
	if r := run(t, "NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_REQUIRE_DRIVER=driver>=570"); r.ExitCode != 0 {
		t.Fatalf("%s", r.Error)
	}
	if _, err := os.Stat(kept); !os.IsNotExist(err) {
		t.Errorf("NVML was asked for a requirement that the driver's version decides: %v", err)
	}
	if r := run(t, "NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_REQUIRE_CUDA=cuda>=12.8"); r.ExitCode != 0 || !strings.Contains(r.Output, h.Driver.GPUs[0].UUID) {
		t.Fatalf("exit status %d: %s%s", r.ExitCode, r.Output, r.Error)
	}
	first, err := os.Stat(kept)
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name string
		env  []string
		err  []string // empty: it starts
	}{
		{"satisfied", []string{"NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_REQUIRE_CUDA=cuda>=12.8,cuda<14", "NVIDIA_REQUIRE_ARCH=arch>=8.9"}, nil},
		{"not satisfied by one of two GPUs", []string{"NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_REQUIRE_CUDA=" + compat},
			[]string{`(nor is any of 2 alternatives)`, "GPU 1 of brand geforcertx"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			before := h.Snapshot(t, h.State, h.Driver.StateDir)
			if len(tc.err) == 0 {
				if r := h.MustRun(t, testenv.RunOptions{Env: tc.env, Args: []string{"/bin/true"}}); r != "" {
					t.Errorf("output %q", r)
				}
			} else {
				r := run(t, tc.env...)
				if r.ExitCode == 0 {
					t.Fatal("it started")
				}
				simhost.Want(t, r.Error, append(tc.err, "NVIDIA_DISABLE_REQUIRE=true")...)
				before.AssertUnchanged(t)
			}
		})
	}
	if now, err := os.Stat(kept); err != nil || !now.ModTime().Equal(first.ModTime()) {
		t.Errorf("NVML was asked again: %v", err)
	}
	t.Run("where NVML hangs", func(t *testing.T) {
		if err := h.Driver.Hang(true); err != nil {
			t.Fatal(err)
		}
		defer func() { _ = h.Driver.Hang(false) }()
		if r := run(t, "NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_REQUIRE_CUDA=cuda>=12.8"); r.ExitCode != 0 {
			t.Errorf("what is known is asked again: %s", r.Error)
		}
		if err := os.Remove(kept); err != nil {
			t.Fatal(err)
		}
		r := run(t, "NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_REQUIRE_CUDA=cuda>=12.8")
		if r.ExitCode == 0 || !strings.Contains(r.Error, `NVIDIA_REQUIRE_CUDA="cuda>=12.8" cannot be checked: NVML was asked`) {
			t.Errorf("exit status %d: %s", r.ExitCode, r.Error)
		}
		for _, env := range []string{"NVIDIA_REQUIRE_DRIVER=driver>=570", "NVIDIA_REQUIRE_CUDA=cuda>=99 driver>=570"} {
			if r := run(t, "NVIDIA_VISIBLE_DEVICES=0", env); r.ExitCode != 0 {
				t.Errorf("%s: %s", env, r.Error)
			}
		}
	})
}
