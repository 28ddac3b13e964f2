//go:build cgo

package nvml

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// envCalls has the test binary try system calls after isolate.
const envCalls = "NVML_TEST_CALLS"

func TestDeniedSystemCalls(t *testing.T) {
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = []string{envCalls + "=1"}
	if out, err := cmd.CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("%v: %s", err, out)
	}
}

func tryCalls() int {
	runtime.LockOSThread()
	if err := isolate("/"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	for _, call := range denied {
		for _, number := range []uintptr{uintptr(call), x32 | uintptr(call)} {
			// The arguments are invalid: without the filter the error is another.
			_, _, errno := unix.RawSyscall6(number, ^uintptr(0), ^uintptr(0), ^uintptr(0), ^uintptr(0), ^uintptr(0), 0)
			if !errors.Is(errno, unix.EPERM) {
				fmt.Fprintf(os.Stderr, "call %#x: %v\n", number, errno)
			}
		}
	}
	return 0
}
