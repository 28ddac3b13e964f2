package prepare

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host/driver"
)

// modprobePath is below the driver root: a driver container has its own modules and a modprobe that
// finds them.
const modprobePath = "/sbin/modprobe"

// modprobeTimeout is for one module. Eight GPUs take about ten seconds.
const modprobeTimeout = 2 * time.Minute

const fixModprobe = "look for NVRM in the kernel log (dmesg), and check that the driver in host.driver-root is installed for the running kernel"

// modprobe loads a module with the programs, the configuration and the modules of the driver root.
// Its environment is empty.
func modprobe(ctx context.Context, root, module string) error {
	if _, err := driver.Locate(root, modprobePath, false); err != nil {
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
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return fmt.Errorf("modprobe %s did not end within %s", module, modprobeTimeout)
	}
	if err != nil {
		return fmt.Errorf("modprobe %s: %w: %.256q", module, err, bytes.TrimSpace(out))
	}
	return nil
}
