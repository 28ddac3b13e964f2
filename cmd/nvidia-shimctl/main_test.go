package main

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simdriver/sim"
)

// simulate makes a driver with three GPUs.
func simulate(t *testing.T) *sim.Driver {
	t.Helper()
	return sim.New(t, sim.Options{GPUs: 3})
}

// ctl runs the tool as a shell would.
func ctl(t *testing.T, args ...string) (status int, stdout, stderr string) {
	t.Helper()
	t.Setenv(config.EnvFile, "")
	var out, errs bytes.Buffer
	status = run(t.Context(), append([]string{"nvidia-shimctl"}, args...), &out, &errs)
	return status, out.String(), errs.String()
}

// fine runs a command that has to succeed, and returns what it prints.
func fine(t *testing.T, args ...string) (stdout string) {
	t.Helper()
	status, stdout, stderr := ctl(t, args...)
	if status != 0 || stderr != "" {
		t.Fatalf("%q: status %d, stderr %q, output\n%s", args, status, stderr, stdout)
	}
	return stdout
}

func decode(t *testing.T, text string, v any) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), v); err != nil {
		t.Fatalf("no JSON: %v\n%s", err, text)
	}
}

func TestWrongUsageEndsWithStatusTwo(t *testing.T) {
	for _, args := range [][]string{
		{"plam"},
		{"--no-such-flag"},
		{"plan", "--no-such-flag"},
		{"plan", "0"},
		{"plan", "--env", "NVIDIA_VISIBLE_DEVICES"},
		{"plan", "--mount", "/srv"},
		{"plan", "--mount", "/srv:relative"},
		{"plan", "--annotation", "key"},
		{"plan", "--bundle", "/x", "--env", "A=B"},
		{"plan", "--bundle", "/x", "--privileged"},
		{"plan", "--container", "x", "--env", "A=B"},
		{"plan", "--pod", "train"},
		{"info", "x"},
		{"check", "x"},
		{"check", "--target", "kind"},
		{"manifest", "x"},
		{"prepare", "x"},
		{"prepare", "--imex-channels", "x"},
		{"status", "x"},
		{"status", "--interval=1ms"},
		{"status", "--root", "x"},
		{"status", "--bin-dir", "/x"},
		{"status", "--host-root", "/nonexistent"},
		{"suspend", "--pod", "train"},
		{"resume", "--pod", "train"},
		{"limit", "--pod", "train", "6Gi"},
		{"serve", "--listen", "3476"},
		{"version", "x"},
		{"version", "help"},
		{"completion", "x"},
		{"completion", "bash", "x"},
		{"completion", "bash", "--no-such-flag"},
		{"help", "x"},
		{"help", "install", "x"},
		{"--help", "x"},
		{"version", "--help", "x"},
		{"--json", "cdi", "--output", "/nonexistent/nvidia.yaml"},
		{"run-args"},
		{"run-args", "--for", "rkt"},
		{"run-args", "--for", "ctr", "x"},
		{"run-args", "--for", "ctr", "--env", "A"},
		{"run-args", "--for", "ctr", "--devices", "void"},
	} {
		status, out, errs := ctl(t, args...)
		if status != 2 || !strings.Contains(errs, "--help") || strings.Count(errs, "\n") != 1 {
			t.Errorf("%q: status %d, stdout %q, stderr %q", args, status, out, errs)
		}
	}
	if status, out, _ := ctl(t); status != 0 || !strings.Contains(out, "plan") {
		t.Errorf("without arguments: status %d, output %q", status, out)
	}
}

func TestVersionIsPrinted(t *testing.T) {
	_, plain, _ := ctl(t, "version")
	status, out, _ := ctl(t, "--json", "version")
	var v struct{ Version, Revision string }
	decode(t, out, &v)
	if want := v.Version + " (" + v.Revision + ")\n"; status != 0 || plain != want {
		t.Errorf("status %d, %q, want %q", status, plain, want)
	}
}

func TestAWrongNameBringsTheRightOne(t *testing.T) {
	for _, tc := range []struct{ args, want string }{
		{"instal", `unknown command "instal": did you mean install?`},
		{"install --dryrun", "flag provided but not defined: -dryrun: did you mean --dry-run?"},
		{"--jsn info", "did you mean --json?"},
		{"plan --gpus all", "flag provided but not defined: -gpus (see"},
		{"check --runtime kind", "is not one of containerd, k3s, rke2, docker"},
		{"completion bash --no", "flag provided but not defined: -no (see"},
		{"node --ready-port 99999", `invalid value "99999" for flag -ready-port (see`},
	} {
		code, _, errs := ctl(t, strings.Fields(tc.args)...)
		if contains(t, errs, tc.want); code != 2 {
			t.Errorf("%s: status %d", tc.args, code)
		}
	}
}
