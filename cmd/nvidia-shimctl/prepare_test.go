package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testtree"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/prepare"
)

func TestPrepareMakesTheNodesThatAreMissing(t *testing.T) {
	d := simulate(t)
	for _, name := range []string{"nvidia0", "nvidiactl", "nvidia-uvm", "nvidia-caps/nvidia-cap1"} {
		testtree.Check(t, os.Remove(filepath.Join(d.DevRoot, "dev", name)))
	}
	if out := fine(t, "--config", d.ConfigPath, "prepare", "--dry-run"); strings.Count(out, "to be made") != 4 {
		t.Errorf("a dry run:\n%s", out)
	}
	out := fine(t, "--config", d.ConfigPath, "--json", "prepare", "--imex-channels", "0")
	var r prepare.Report
	decode(t, out, &r)
	if !r.Ready || r.DryRun || strings.Count(out, `"state": "made"`) != 5 || len(r.PCI) != 3 {
		t.Errorf("%+v", r)
	}
	// Another file has the name of a node.
	name := filepath.Join(d.DevRoot, "dev/nvidia1")
	testtree.Check(t, os.Remove(name))
	write(t, name, "")
	if status, out, _ := ctl(t, "--config", d.ConfigPath, "prepare"); status != 1 || !strings.Contains(out, ": it is not a character device\n               fix: nvidia-shimctl prepare --replace\n") {
		t.Errorf("status %d\n%s", status, out)
	}
	if out := fine(t, "--config", d.ConfigPath, "prepare", "--replace"); strings.Count(out, "replaced") != 1 {
		t.Errorf("with --replace:\n%s", out)
	}
}

// The driver root has no modprobe: the message shows the attempt to load modules.
func TestPrepareLoadsModulesIfToldTo(t *testing.T) {
	d := simulate(t)
	testtree.Check(t, os.RemoveAll(filepath.Join(d.ProcRoot, "driver")))
	text, err := os.ReadFile(d.ConfigPath)
	testtree.Check(t, err)
	load := testtree.NewRoot(t).Write("config.toml", string(text)+"load-kernel-modules = true\n")
	const told = "host.load-kernel-modules = true"
	modprobe := filepath.Join(d.Root, "sbin/modprobe")
	for _, c := range []struct {
		args []string
		says string
	}{
		{[]string{"--config", d.ConfigPath, "prepare"}, told},
		{[]string{"--config", d.ConfigPath, "prepare", "--load-modules"}, modprobe},
		{[]string{"--config", load, "prepare"}, modprobe},
		{[]string{"--config", load, "prepare", "--load-modules=false"}, told},
	} {
		if status, out, _ := ctl(t, c.args...); status != 1 || strings.Contains(out, modprobe) != (c.says == modprobe) || !strings.Contains(out, c.says) {
			t.Errorf("%q: status %d\n%s", c.args, status, out)
		}
	}
	// Without a GPU there is nothing to do, and the unit at boot does not fail.
	testtree.Check(t, os.RemoveAll(filepath.Join(d.SysRoot, "bus")))
	if status, out, _ := ctl(t, "--config", load, "prepare"); status != 0 || !strings.Contains(out, "nothing to do") {
		t.Errorf("without a GPU: status %d\n%s", status, out)
	}
}
