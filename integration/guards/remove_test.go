//go:build guards

package guards

import (
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
)

// run runs tests of one package in a mount namespace of its own: what a test mounts because a guard
// is missing is never the host's.
func run(t *testing.T, dir, tests string, flags ...string) (output string, err error) {
	t.Helper()
	args := append([]string{"test", "-count=1", "-vet=off", "-timeout=2m", "-run=^(" + tests + ")$"}, flags...)
	cmd := exec.Command("go", append(args, "./"+dir)...)
	cmd.Dir = root
	tmp, err := os.MkdirTemp("", "g") // the path of a socket has a limit that t.TempDir is beyond
	check(t, err)
	check(t, os.Chmod(tmp, 0o711)) // other users pass through it
	defer os.RemoveAll(tmp)
	cmd.Env = append(cmd.Environ(), "TMPDIR="+tmp)
	// The os package makes the mounts of the new namespace private.
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func TestEveryTestPassesWithItsGuard(t *testing.T) {
	tests := map[string]string{}
	for _, g := range load(t) {
		tests[g.dir] = strings.TrimPrefix(tests[g.dir]+"|"+g.test, "|")
	}
	for dir, list := range tests {
		if out, err := run(t, dir, list); err != nil {
			t.Errorf("%s: %v\n%s", dir, err, out)
		}
	}
}

func TestNoTestPassesWithoutItsGuard(t *testing.T) {
	for _, g := range load(t) {
		t.Run(g.name, func(t *testing.T) {
			out, err := run(t, g.dir, g.test, "-overlay="+overlay(t, g))
			switch {
			case err == nil:
				t.Errorf("%s passes without the guard in %s", g.test, g.file)
			case !strings.Contains(out, "--- FAIL: "+g.test) || strings.Contains(out, "panic: test timed out"):
				t.Errorf("%s of %s does not fail as a test does: %v\n%s", g.test, g.dir, err, out)
			default:
				t.Logf("caught by %s of %s", g.test, g.dir)
			}
		})
	}
}
