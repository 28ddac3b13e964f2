//go:build shimfault

package fault

import (
	"fmt"
	"os"
	"strings"
	"syscall"
	"time"
)

// Env is the variable in containerd's environment that names a step and what happens there:
// "mask=kill" ends the process with SIGKILL, "mask=error" makes the step fail.
const Env = "NVIDIA_SHIM_FAULT"

// Point is called at the beginning of each step.
func Point(step string) error {
	name, action, ok := strings.Cut(os.Getenv(Env), "=")
	if !ok || name != step {
		return nil
	}
	if action == "kill" {
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		time.Sleep(time.Minute)
	}
	return fmt.Errorf("fault injected at step %s", step)
}
