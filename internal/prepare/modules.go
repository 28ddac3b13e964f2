package prepare

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host/driver"
)

// modprobePath is below the driver root: a driver container has modules of its own, and
// a modprobe that finds them.
const modprobePath = "/sbin/modprobe"

// modprobeTimeout is for one module. Eight GPUs take some ten seconds.
const modprobeTimeout = 2 * time.Minute

const fixModprobe = "look at the kernel's log (dmesg) for NVRM, and whether the driver is installed for the running kernel in host.driver-root"

// maxOutput bounds what is kept of a program's words, in bytes.
const maxOutput = 256

// checkModprobe refuses a program that others than root could have put there.
func checkModprobe(root string) error { return driver.CheckProgram(root, modprobePath) }

// modprobe loads a module, with the programs, the configuration and the modules of the
// driver root. The environment is empty, so nothing of the caller's steers it.
func modprobe(ctx context.Context, root, module string) error {
	if err := checkModprobe(root); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, modprobeTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, modprobePath, module)
	cmd.Env, cmd.Dir = []string{}, "/"
	cmd.WaitDelay = time.Second
	if filepath.Clean(root) != "/" {
		cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: root}
	}
	out, err := cmd.CombinedOutput()
	switch {
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return fmt.Errorf("modprobe %s did not end within %s", module, modprobeTimeout)
	case err != nil && len(out) > 0:
		text := strings.TrimSpace(string(out[:min(len(out), maxOutput)]))
		return fmt.Errorf("modprobe %s: %w: %q", module, err, text)
	case err != nil:
		return fmt.Errorf("modprobe %s: %w", module, err)
	}
	return nil
}
