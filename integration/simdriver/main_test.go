package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestMakeUpgradeAndRemove(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Fatal("needs root: device nodes are made with mknod")
	}
	dir := filepath.Join(t.TempDir(), "gpus")
	var out bytes.Buffer
	if err := run(t.Context(), []string{"-dir", dir, "-gpus", "2", "-layout", "rhel", "-mig", "1:3:0"}, &out); err != nil {
		t.Fatal(err)
	}
	written, err := os.ReadFile(filepath.Join(dir, "config.toml"))
	if err != nil || out.String() != string(written) || !strings.Contains(out.String(), "driver-root = ") {
		t.Errorf("printed %q, wrote %q, %v", out.String(), written, err)
	}
	if err := run(t.Context(), []string{"-dir", dir, "-upgrade", "590.48.01"}, &out); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Join(dir, "root/usr/lib64/libcuda.so.590.48.01")); err != nil {
		t.Error(err)
	}
	if err := run(t.Context(), []string{"-dir", dir, "-remove"}, &out); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(dir); !os.IsNotExist(err) {
		t.Errorf("%s is left: %v", dir, err)
	}
}
