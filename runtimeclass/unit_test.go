package runtimeclass

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// What systemd itself says about the unit.
func TestSystemdAcceptsTheUnit(t *testing.T) {
	program, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Skipf("systemd-analyze is missing: install the package systemd: %v", err)
	}
	dir := t.TempDir()
	// verify wants the program to be there.
	if err := os.WriteFile(filepath.Join(dir, CtlName), []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	text, err := PrepareUnit(dir)
	if err != nil {
		t.Fatal(err)
	}
	verify := func(text string) (string, error) {
		name := filepath.Join(dir, UnitName)
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		out, err := exec.Command(program, "verify", "--man=no", name).CombinedOutput()
		return string(out), err
	}
	if out, err := verify(text); err != nil || out != "" {
		t.Errorf("%v: %s", err, out)
	}
	// So that the test can fail.
	if out, err := verify(strings.Replace(text, "RemainAfterExit", "RemainAfterwards", 1)); err == nil && out == "" {
		t.Error("systemd-analyze accepts anything")
	}
}
