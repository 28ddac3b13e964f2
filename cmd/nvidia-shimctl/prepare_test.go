package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/prepare"
)

func TestPrepareMakesTheNodesThatAreMissing(t *testing.T) {
	d := simulate(t)
	run := func(args ...string) (int, prepare.Report) {
		t.Helper()
		status, out, errs := ctl(t, append([]string{"--config", d.ConfigPath, "--json", "prepare"}, args...)...)
		if errs != "" {
			t.Fatalf("stderr %q", errs)
		}
		var r prepare.Report
		decode(t, out, &r)
		return status, r
	}
	count := func(r prepare.Report, state string) (n int) {
		for _, node := range r.Nodes {
			if node.State == state {
				n++
			}
		}
		return n
	}
	status, r := run()
	all := len(r.Nodes)
	if status != 0 || !r.Ready || all < 8 || count(r, prepare.Present) != all || len(r.PCI) != 3 {
		t.Errorf("a host that is ready: status %d, %+v", status, r)
	}
	for _, name := range []string{"nvidia0", "nvidiactl", "nvidia-uvm", "nvidia-caps/nvidia-cap1"} {
		if err := os.Remove(filepath.Join(d.DevRoot, "dev", name)); err != nil {
			t.Fatal(err)
		}
	}
	if status, r := run("--dry-run"); status != 0 || !r.DryRun || count(r, prepare.Made) != 4 {
		t.Errorf("a dry run: status %d, %+v", status, r)
	}
	if status, out, _ := ctl(t, "--config", d.ConfigPath, "prepare", "--dry-run"); status != 0 || strings.Count(out, "to be made") != 4 {
		t.Errorf("a dry run: status %d\n%s", status, out)
	}
	if status, r := run("--imex-channels", "0"); status != 0 || count(r, prepare.Made) != 5 {
		t.Errorf("status %d, %+v", status, r)
	}
	// Something else is in the place of a node.
	name := filepath.Join(d.DevRoot, "dev/nvidia1")
	if err := os.Remove(name); err != nil {
		t.Fatal(err)
	}
	write(t, name, "", 0o644)
	status, out, _ := ctl(t, "--config", d.ConfigPath, "prepare")
	if status != 1 || !strings.Contains(out, ": it is not a character device\n               fix: nvidia-shimctl prepare --replace\n") {
		t.Errorf("status %d\n%s", status, out)
	}
	if status, _ := run("--replace"); status != 0 {
		t.Errorf("with --replace: status %d", status)
	}
}

func TestPrepareWithoutADriver(t *testing.T) {
	d := simulate(t)
	if err := os.RemoveAll(filepath.Join(d.ProcRoot, "driver")); err != nil {
		t.Fatal(err)
	}
	status, out, _ := ctl(t, "--config", d.ConfigPath, "prepare")
	if status != 1 || !strings.Contains(out, "host.load-kernel-modules = true") {
		t.Errorf("status %d\n%s", status, out)
	}
	// The driver root has no modprobe. The configuration says to load as the flag does.
	status, flag, _ := ctl(t, "--config", d.ConfigPath, "prepare", "--load-modules")
	if status != 1 || !strings.Contains(flag, filepath.Join(d.Root, "sbin/modprobe")) {
		t.Errorf("status %d\n%s", status, flag)
	}
	text, err := os.ReadFile(d.ConfigPath)
	if err != nil {
		t.Fatal(err)
	}
	config := filepath.Join(t.TempDir(), "config.toml")
	write(t, config, string(text)+"load-kernel-modules = true\n", 0o600)
	if status, out, _ := ctl(t, "--config", config, "prepare"); status != 1 || out != flag {
		t.Errorf("by configuration: status %d\n%s", status, out)
	}
	if _, out, _ := ctl(t, "--config", config, "prepare", "--load-modules=false"); strings.Contains(out, "sbin/modprobe") {
		t.Errorf("--load-modules=false:\n%s", out)
	}
	// Without a GPU there is nothing to do, and the unit at boot does not fail.
	if err := os.RemoveAll(filepath.Join(d.SysRoot, "bus")); err != nil {
		t.Fatal(err)
	}
	if status, out, _ := ctl(t, "--config", config, "prepare"); status != 0 || !strings.Contains(out, "nothing to do") {
		t.Errorf("without a GPU: status %d\n%s", status, out)
	}
	for _, args := range [][]string{{"prepare", "now"}, {"prepare", "--imex-channels", "x"}} {
		if status, _, errs := ctl(t, args...); status != 2 {
			t.Errorf("%q: status %d, %s", args, status, errs)
		}
	}
}

func TestADryRunStartsNoUnit(t *testing.T) {
	calls := fakeSystemctl(t, "exit 0")
	_, install, _ := onThisHost(t)
	if status, _, errs := ctl(t, append(install, "--prepare-unit", "--dry-run", "--restart")...); status != 0 || len(calls()) != 0 {
		t.Errorf("status %d, %s, %q", status, errs, calls())
	}
}
