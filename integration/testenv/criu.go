package testenv

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/advisories"
)

// CRIU returns the program criu in PATH or beside the shim, which comes first in containerd's PATH.
// Without one that works here, and a runc, that may write checkpoints, the test is skipped. Call it
// before Start.
func CRIU(t testing.TB) string {
	t.Helper()
	criu, err := exec.LookPath("criu")
	if err != nil {
		criu, err = exec.LookPath(filepath.Join(ShimDir(), "criu"))
	}
	if err != nil {
		t.Skip("NOT TESTED: criu, 4.3.1 or later, is not in PATH")
	}
	tools, err := ToolsDir()
	if err != nil {
		t.Fatal(err)
	}
	for program, safe := range map[string]func(string) error{criu: advisories.CheckCRIU, filepath.Join(tools, "runc"): advisories.CheckRuntime} {
		out, err := exec.Command(program, "--version").Output()
		if err == nil {
			err = safe(string(out))
		}
		if err != nil {
			t.Skipf("NOT TESTED: %s: %v", program, err)
		}
	}
	for _, cache := range []string{"/run/criu.kdat", "/run/criu.kdat.tmp"} { // of what the kernel can do
		if _, err := os.Stat(cache); err != nil {
			t.Cleanup(func() { _ = os.Remove(cache) })
		}
	}
	if out, err := exec.Command(criu, "check").CombinedOutput(); err != nil {
		t.Skipf("NOT TESTED: criu check: %v: %s", err, out)
	}
	return criu
}

// RemoveFIFOs removes at the test's end the directories that "ctr containers restore", which has no
// flag for them, makes in /run.
func RemoveFIFOs(t testing.TB) {
	t.Helper()
	ShareForTest(t, "/run/containerd", "/run/containerd/fifo")
}
