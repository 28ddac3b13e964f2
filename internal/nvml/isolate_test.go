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
	if err := denyAllBut(nil); err != nil {
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

// The kernel of this host need not have another architecture's calls, so the filter is run here.
func TestTheFilterDeniesCallsOfOtherArchitectures(t *testing.T) {
	program := filter([]uint32{59, 133}, unix.EPERM)
	run := func(arch, call uint32) uint32 {
		value := uint32(0)
		for pc := 0; ; pc++ {
			i := program[pc]
			holds := i.Code == unix.BPF_JMP|unix.BPF_JEQ|unix.BPF_K && value == i.K || i.Code == unix.BPF_JMP|unix.BPF_JGE|unix.BPF_K && value >= i.K
			switch {
			case i.Code == unix.BPF_RET|unix.BPF_K:
				return i.K
			case i.Code == unix.BPF_LD|unix.BPF_W|unix.BPF_ABS:
				value = map[uint32]uint32{0: call, 4: arch}[i.K]
			case holds:
				pc += int(i.Jt)
			default:
				pc += int(i.Jf)
			}
		}
	}
	for _, tc := range []struct {
		arch, call uint32
		allowed    bool
	}{
		{auditArch, 0, true}, {auditArch, 60, true}, {auditArch, 59, false}, {auditArch, 133, false}, {auditArch, x32 | 60, false},
		{unix.AUDIT_ARCH_I386, 60, false}, {unix.AUDIT_ARCH_ARM, 60, false}, {0, 0, false},
	} {
		if got := run(tc.arch, tc.call) == unix.SECCOMP_RET_ALLOW; got != tc.allowed {
			t.Errorf("call %d of architecture %#x is allowed: %v", tc.call, tc.arch, got)
		}
	}
}
