package ctl

import (
	"debug/elf"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simhost"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testenv"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/version"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/runtimeclass"
)

// One build serves every distribution: only the program that loads NVML needs a C library.
func TestOnlyTheNVMLProgramNeedsACLibrary(t *testing.T) {
	for _, name := range runtimeclass.Programs {
		f, err := elf.Open(filepath.Join(testenv.ShimDir(), name))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		libraries, err := f.ImportedLibraries()
		if err != nil || (len(libraries) > 0) != (name == version.NVML) {
			t.Errorf("%s needs %v, %v", name, libraries, err)
		}
	}
}

// docs/install.md and the packages promise this version.
func TestTheNVMLProgramRunsWithGlibc234(t *testing.T) {
	testenv.RunsWithGlibc234(t, filepath.Join(testenv.ShimDir(), version.NVML))
}

func TestNVMLIsAskedByTheProgramBeside(t *testing.T) {
	h := simhost.New(t, simhost.Options{})
	simhost.Want(t, h.Ctl(t, "probe"), `"cuda": "13.0"`)
	dir := t.TempDir()
	program, err := os.ReadFile(filepath.Join(testenv.ShimDir(), version.Ctl))
	if err != nil {
		t.Fatal(err)
	}
	write := func(name string, text []byte) {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	probe := func(want string) {
		t.Helper()
		cmd := exec.Command(filepath.Join(dir, version.Ctl), "--config", h.Driver.ConfigPath, "probe")
		if out, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(out), want) {
			t.Errorf("%v, want %q: %s", err, want, out)
		}
	}
	write(version.Ctl, program)
	probe("NVML cannot be asked: nvidia-shim-nvml is not beside the shim: install it at " + dir)
	write(version.NVML, []byte("of another architecture"))
	probe("nvidia-shim-nvml needs the C library of this host")
}
