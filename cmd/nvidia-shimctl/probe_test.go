package main

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testenv/kubelettest"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/nvml"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/probe"
)

// The program executes itself to ask NVML; here that is the test binary. A shell that completes a
// command line executes it by its name.
func TestMain(m *testing.M) {
	if slices.Contains(os.Args[1:], "probe") || filepath.Base(os.Args[0]) == "nvidia-shimctl" {
		os.Exit(run(context.Background(), os.Args, os.Stdout, os.Stderr))
	}
	os.Exit(m.Run())
}

// runProbe runs the probe in a separate process: one that has asked NVML cannot start programs.
func runProbe(t *testing.T, args ...string) (answers probe.Answers, errs string) {
	t.Helper()
	var out, err strings.Builder
	cmd := exec.Command("/proc/self/exe", args...)
	cmd.Stdout, cmd.Stderr = &out, &err
	if cmd.Run() == nil && err.Len() > 0 {
		t.Errorf("status 0 with an error: %s", err.String())
	}
	decode(t, out.String(), &answers)
	return answers, err.String()
}

func TestProbePrintsAnswers(t *testing.T) {
	d := simulate(t)
	socket := filepath.Join(t.TempDir(), "kubelet.sock")
	kubelettest.Serve(t, socket, kubelettest.Pod("team", "train", "GPU-a"))

	a, errs := runProbe(t, "--config", d.ConfigPath, "probe")
	if a.Facts == nil || a.Facts.CUDA != "13.0" || len(a.Facts.GPUs) != 3 || errs != "" {
		t.Errorf("facts %+v, %s", a, errs)
	}
	a, errs = runProbe(t, "--config", d.ConfigPath, "probe", "--live")
	var live nvml.Snapshot
	if decode(t, string(a.Live), &live); len(live.GPUs) != 3 || a.Facts != nil || errs != "" {
		t.Errorf("live %s, %s", a.Live, errs)
	}
	a, errs = runProbe(t, "probe", "--socket", socket, "--pod", "team/train")
	if a.Pod == nil || !slices.Equal(a.Pod.Containers["main"], []string{"GPU-a"}) || errs != "" {
		t.Errorf("pod %+v, %s", a, errs)
	}
	if err := d.Hang(true); err != nil {
		t.Fatal(err)
	}
	a, errs = runProbe(t, "--config", d.ConfigPath, "probe", "--timeout", "300ms")
	if !strings.HasPrefix(errs, "nvidia-shimctl: NVML has not answered within 300ms") || a.FactsError == "" {
		t.Errorf("a hung driver: %+v, %s", a, errs)
	}
	for _, args := range [][]string{{"--pod", "train"}, {"--pod", "/train"}, {"--questions", "--timeout=x"}, {"nvml"}} {
		if status, _, errs := ctl(t, append([]string{"probe"}, args...)...); status != 2 {
			t.Errorf("%q: status %d, %s", args, status, errs)
		}
	}
}
