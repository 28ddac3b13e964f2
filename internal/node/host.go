package node

import (
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/cmdline"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/kubeapi"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/openat"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/procfs"
)

// EnterHost makes the host's root the root of this process. It returns the directories of this
// program and of the service account, which are then outside that root.
func EnterHost(root string) (programs, account string, err error) {
	self, err := os.Executable()
	if err != nil {
		return "", "", err
	}
	open := func(dir string) (string, error) {
		fd, err := openat.Root(dir)
		return openat.Path(fd), err
	}
	if programs, err = open(filepath.Dir(self)); err != nil {
		return "", "", err
	}
	if account, err = open(kubeapi.ServiceAccount); err != nil {
		account = kubeapi.ServiceAccount // API requests then fail
	}
	if err := os.Chdir(root); err != nil {
		return "", "", cmdline.Errorf("--host-root: %v", err)
	}
	if err := unix.Chroot("."); err != nil {
		return "", "", fmt.Errorf("--host-root %s: %w", root, err)
	}
	if procfs.Host.InOtherPIDNamespace(1) {
		return "", "", cmdline.Errorf("--host-root %s is not the root of the host with its /proc, or the pod lacks hostPID", root)
	}
	// Otherwise systemctl would assume that it runs in a chroot without systemd.
	return programs, account, os.Setenv("SYSTEMD_IGNORE_CHROOT", "1")
}
