package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host/device"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/view"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simdriver/sim"
)

// The tool starts itself to ask NVML; here that is the test binary. A shell that
// completes a command line calls it by its name.
func TestMain(m *testing.M) {
	if slices.Contains(os.Args[1:], "probe") || filepath.Base(os.Args[0]) == "nvidia-shimctl" {
		os.Exit(run(context.Background(), os.Args, os.Stdout, os.Stderr))
	}
	os.Exit(m.Run())
}

// probeNVML runs the probe as the shim does.
func probeNVML(t *testing.T, d *sim.Driver, args ...string) (string, error) {
	t.Helper()
	var out, errs strings.Builder
	cmd := exec.Command("/proc/self/exe", append([]string{"--config=" + d.ConfigPath, "probe", "nvml"}, args...)...)
	cmd.Env, cmd.Dir = []string{}, "/"
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("%w: %s", err, strings.TrimSpace(errs.String()))
	}
	return out.String(), nil
}

func TestTheProbePrintsFacts(t *testing.T) {
	d := simulate(t)
	out, err := probeNVML(t, d)
	if err != nil {
		t.Fatal(err)
	}
	var facts device.Facts
	decode(t, out, &facts)
	if facts.Driver != d.Version || facts.CUDA != "13.0" || len(facts.GPUs) != 3 || facts.GPUs[1].UUID != d.GPUs[1].UUID {
		t.Errorf("facts %+v", facts)
	}
}

func TestAProbeOfAHungDriverEndsByItself(t *testing.T) {
	d := simulate(t)
	if err := d.Hang(true); err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	out, err := probeNVML(t, d, "--timeout=300ms")
	if err == nil || out != "" || !strings.Contains(err.Error(), "nvidia-shimctl: NVML has not answered within 300ms: nvidia-smi on this host should hang as well") {
		t.Errorf("%q, %v", out, err)
	}
	if took := time.Since(start); took > 10*time.Second {
		t.Errorf("it took %s", took)
	}
	if err := d.Hang(false); err != nil {
		t.Fatal(err)
	}
	if _, err := probeNVML(t, d); err != nil {
		t.Errorf("the driver works again: %v", err)
	}
}

// A process that hangs in the kernel keeps its lock. The test holds it in its place.
func TestOneProbeOfAHungDriverIsEnough(t *testing.T) {
	d := simulate(t)
	if err := os.MkdirAll(d.StateDir, 0o700); err != nil {
		t.Fatal(err)
	}
	state, err := view.OpenState(d.StateDir)
	if err != nil {
		t.Fatal(err)
	}
	lock, err := state.Lock(nvmlLock, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	for _, tc := range []struct {
		name    string
		until   time.Time
		timeout string
		took    time.Duration
		err     string
	}{
		{"it was to end long ago", time.Now().Add(-time.Minute), "20s", 10 * time.Second, "process 4711 asked NVML and was to end at "},
		{"it may still answer", time.Now().Add(time.Hour), "500ms", 10 * time.Second, "process 4711 asks NVML and has not ended within 500ms"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			note := fmt.Sprintf("4711 %d\n", tc.until.UnixNano())
			if err := os.WriteFile(filepath.Join(d.StateDir, nvmlLock), []byte(note), 0o600); err != nil {
				t.Fatal(err)
			}
			start := time.Now()
			_, err := probeNVML(t, d, "--timeout="+tc.timeout)
			if err == nil || !strings.Contains(err.Error(), tc.err) {
				t.Errorf("error %v", err)
			}
			if took := time.Since(start); took > tc.took {
				t.Errorf("it took %s", took)
			}
		})
	}
}

func TestProbesTakeTurns(t *testing.T) {
	d := simulate(t)
	errs := make(chan error)
	for range 8 {
		go func() {
			_, err := probeNVML(t, d)
			errs <- err
		}()
	}
	for range 8 {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
}

func TestAPlanAsksNVMLWhereTheRequestNeedsIt(t *testing.T) {
	d := simulate(t)
	require := []string{"--config", d.ConfigPath, "--json", "plan", "--env", "NVIDIA_VISIBLE_DEVICES=0", "--env"}
	kept := filepath.Join(d.StateDir, "nvml.json")

	status, _, errs := ctl(t, append(require, "A=B")...)
	if _, err := os.Stat(kept); status != 0 || !os.IsNotExist(err) {
		t.Fatalf("status %d, %s; NVML was asked for a plain request: %v", status, errs, err)
	}
	status, out, errs := ctl(t, append(require, "NVIDIA_REQUIRE_X=cuda>=12,brand=nvidia,arch>=9")...)
	if status != 0 || errs != "" {
		t.Fatalf("status %d: %s%s", status, out, errs)
	}
	if _, err := os.Stat(kept); err != nil {
		t.Errorf("the answer was not kept: %v", err)
	}
	status, out, _ = ctl(t, append(require, "NVIDIA_REQUIRE_X=arch>=99")...)
	var plan gpuinject.Plan
	decode(t, out, &plan)
	if status != 1 || !strings.Contains(plan.Error, "arch>=99") {
		t.Errorf("status %d, %q", status, plan.Error)
	}
}

func TestAPlanDoesNotHangWithTheDriver(t *testing.T) {
	defer func(d time.Duration) { nvmlTimeout = d }(nvmlTimeout)
	nvmlTimeout = 300 * time.Millisecond
	d := simulate(t)
	if err := d.Hang(true); err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	status, out, _ := ctl(t, "--config", d.ConfigPath, "--json", "plan", "--env", "NVIDIA_VISIBLE_DEVICES=0", "--env", "NVIDIA_REQUIRE_X=brand=nvidia")
	var plan gpuinject.Plan
	decode(t, out, &plan)
	if status != 1 || !strings.Contains(plan.Error, "NVML has not answered within 300ms") {
		t.Errorf("status %d, %q", status, plan.Error)
	}
	if took := time.Since(start); took > 10*time.Second {
		t.Errorf("it took %s", took)
	}
}

func TestWhatTheAskingProcessDoesIsNotBelievedBlindly(t *testing.T) {
	defer func(s string) { self = s }(self)
	self = filepath.Join(t.TempDir(), "nvidia-shimctl")
	for _, tc := range []struct{ name, script, err string }{
		{"garbage", "echo hello", "answered what is no JSON"},
		{"too much", "head -c 100000000 /dev/zero", "the process that asked NVML answered more than 4194304 bytes"},
		{"nothing", "exit 1", "the process that asked NVML ended with exit status 1"},
		{"an error", "echo 'nvidia-shimctl: GPU is lost' >&2; exit 1", "GPU is lost"},
		{"no end", "trap '' TERM; while :; do sleep 0.05; done", "NVML has not answered within 300ms, and the process that asked it hangs"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if err := os.WriteFile(self, []byte("#!/bin/sh\n"+tc.script+"\n"), 0o755); err != nil {
				t.Fatal(err)
			}
			// Only what does not end may meet the limit, on a loaded machine, too.
			limit := 30 * time.Second
			if tc.name == "no end" {
				limit = 300 * time.Millisecond
			}
			var facts device.Facts
			if err := askSelf(limit, &facts); err == nil || !strings.Contains(err.Error(), tc.err) {
				t.Errorf("error %v, want %q", err, tc.err)
			}
		})
	}
}
