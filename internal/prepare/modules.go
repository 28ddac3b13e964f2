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

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host/device"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host/driver"
)

// modprobePath is relative to the driver root: a driver container has its own modules and a
// modprobe that finds them.
const modprobePath = "/sbin/modprobe"

// modprobeTimeout bounds loading one module. With eight GPUs it takes about ten seconds.
const modprobeTimeout = 2 * time.Minute

const fixModprobe = "look for NVRM in the kernel log (dmesg), and check that the driver in host.driver-root is installed for the running kernel"

// modules loads the missing modules, in the order in which they depend on each other.
func (r *Report) modules(ctx context.Context, o Options) {
	for _, m := range []Module{
		{Name: device.ModuleNVIDIA, Required: true},
		{Name: device.ModuleUVM, Required: true},
		{Name: device.ModuleModeset},
	} {
		switch {
		case device.ModuleLoaded(o.Host, m.Name):
			m.State = Present
		case !o.LoadModules:
			m.Result = Result{Missing, "it is not loaded, and prepare was not told to load modules", "nvidia-shimctl prepare --load-modules, or host.load-kernel-modules = true"}
			if !m.Required {
				m.Message = "it is not loaded; only graphics and display need it"
			}
		default:
			m.Result = load(ctx, o, m.Name)
		}
		r.Modules = append(r.Modules, m)
	}
}

// load loads a module or, in a dry run, checks that this is possible.
func load(ctx context.Context, o Options, name string) Result {
	_, err := driver.Locate(o.Host.DriverRoot, modprobePath)
	if err == nil && !o.DryRun {
		err = modprobe(ctx, o.Host.DriverRoot, name)
		if err == nil && !device.ModuleLoaded(o.Host, name) {
			err = fmt.Errorf("modprobe %s succeeded, but the module is not loaded", name)
		}
	}
	if err != nil {
		return Result{Failed, err.Error(), fixModprobe}
	}
	return Result{State: Made}
}

// modprobe loads a module with the programs, the configuration and the modules of the driver root.
// Its environment is empty. driver.Locate has to find the program.
func modprobe(ctx context.Context, root, module string) error {
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
