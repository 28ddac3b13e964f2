package testtree

import (
	"fmt"
	"os"
	"os/exec"
	"syscall"
)

// InOwnMounts returns in a process that has a mount namespace of its own, so that no mount of a
// test is ever the host's. In the process that calls it first, it runs the test binary again and
// exits. It is for TestMain.
func InOwnMounts() {
	const inside = "TESTTREE_INSIDE"
	if os.Geteuid() != 0 {
		fmt.Fprintln(os.Stderr, "the tests mount file systems: run them as root")
		os.Exit(1)
	}
	if os.Getenv(inside) != "" {
		return
	}
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Args[0] = os.Args[0]
	cmd.Env = append(os.Environ(), inside+"=1")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	// Package os makes the mounts of the new namespace private.
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	if err := cmd.Run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}
