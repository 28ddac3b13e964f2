//go:build shimfault

package fault

import (
	"errors"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
)

func TestOnlyTheNamedStepFails(t *testing.T) {
	for value, want := range map[string]bool{
		"": false, "mask": false, "mask=error": true, "view=error": false, "mas=error": false, "mask ": false,
	} {
		t.Setenv(Env, value)
		if err := Point("mask"); (err != nil) != want {
			t.Errorf("%s=%s: %v", Env, value, err)
		} else if want && !strings.Contains(err.Error(), "mask") {
			t.Errorf("error %q does not name the step", err)
		}
	}
}

func TestKillEndsTheProcessAtTheStep(t *testing.T) {
	if os.Getenv("FAULT_TEST_CHILD") != "" {
		_ = Point("other")
		os.Stdout.WriteString("alive\n")
		_ = Point("mask")
		os.Exit(0)
	}
	cmd := exec.Command("/proc/self/exe", "-test.run=^TestKillEndsTheProcessAtTheStep$")
	cmd.Env = append(os.Environ(), "FAULT_TEST_CHILD=1", Env+"=mask=kill")
	out, err := cmd.Output()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL || string(out) != "alive\n" {
		t.Errorf("the process ended by %v after it wrote %q", err, out)
	}
}
