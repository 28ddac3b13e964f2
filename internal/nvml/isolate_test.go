//go:build cgo

package nvml

import (
	"errors"
	"fmt"
	"os/exec"
	"runtime"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

func TestDeniedSystemCalls(t *testing.T) {
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = []string{envTask + "=calls"}
	if out, err := cmd.CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("%v: %s", err, out)
	}
}

// tryCalls tries the denied system calls after isolate.
func tryCalls() error {
	runtime.LockOSThread()
	if err := isolate("/", nil); err != nil {
		return err
	}
	others := []uint32{
		unix.SYS_IO_URING_SETUP, unix.SYS_TRUNCATE, unix.SYS_MOUNT, unix.SYS_MOUNT_SETATTR, unix.SYS_MOVE_MOUNT,
		unix.SYS_OPEN_TREE, unix.SYS_OPEN_TREE_ATTR, unix.SYS_FSOPEN, unix.SYS_FSMOUNT, unix.SYS_FSPICK,
	}
	for _, call := range slices.Concat(denied, others) {
		for _, number := range []uintptr{uintptr(call), x32 | uintptr(call)} {
			// The arguments are invalid: without the filter the error is another.
			_, _, errno := unix.RawSyscall6(number, ^uintptr(0), ^uintptr(0), ^uintptr(0), ^uintptr(0), ^uintptr(0), 0)
			if !errors.Is(errno, unix.EPERM) {
				return fmt.Errorf("call %#x: %w", number, errno)
			}
		}
	}
	return nil
}
