package nvml

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"unsafe"

	"golang.org/x/sys/unix"
)

// denied lists the system calls that start a program, make, rename, truncate or remove a file by
// its name, change its owner or mode, mount, or load a module, and io_uring, which can do the same.
var denied = slices.Concat(oldDenied, []uint32{
	unix.SYS_EXECVE, unix.SYS_EXECVEAT,
	unix.SYS_MKNODAT, unix.SYS_MKDIRAT, unix.SYS_LINKAT, unix.SYS_SYMLINKAT,
	unix.SYS_RENAMEAT, unix.SYS_RENAMEAT2, unix.SYS_UNLINKAT,
	unix.SYS_FCHMOD, unix.SYS_FCHMODAT, unix.SYS_FCHMODAT2, unix.SYS_FCHOWN, unix.SYS_FCHOWNAT,
	unix.SYS_IO_URING_SETUP, unix.SYS_TRUNCATE, unix.SYS_MOUNT, unix.SYS_MOUNT_SETATTR, unix.SYS_MOVE_MOUNT,
	unix.SYS_OPEN_TREE, unix.SYS_OPEN_TREE_ATTR, unix.SYS_FSOPEN, unix.SYS_FSMOUNT, unix.SYS_FSPICK,
	unix.SYS_INIT_MODULE, unix.SYS_FINIT_MODULE, unix.SYS_DELETE_MODULE,
})

// useDevRoot makes the device nodes of host.dev-root those of the calling thread. The goroutine must
// be locked to the thread and never unlock it.
func useDevRoot(devRoot string) error {
	if devRoot == "/" {
		return nil
	}
	if err := useDev(filepath.Join(devRoot, "dev")); err != nil {
		return fmt.Errorf("give NVML the device nodes of host.dev-root: %w", err)
	}
	return nil
}

// denyAllBut denies the process the calls that NVML must not make, except those in allowed.
func denyAllBut(allowed []uint32) error {
	calls := slices.DeleteFunc(slices.Clone(denied), func(call uint32) bool { return slices.Contains(allowed, call) })
	if err := deny(calls, unix.EPERM); err != nil { // guard: probe: system calls denied
		return fmt.Errorf("keep NVML from starting programs and making device nodes: %w", err)
	}
	return nil
}

// useDev makes dir the /dev of this thread and of the threads that it starts.
func useDev(dir string) error {
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("mount namespace: %w", err)
	}
	// The next mount must not propagate to the host.
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	if err := unix.Mount(dir, "/dev", "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return &os.PathError{Op: "bind on /dev", Path: dir, Err: err}
	}
	return nil
}

// x32 is the first system call number of the x32 ABI: the same calls by other numbers, under the
// same architecture x86-64.
const x32 = 0x40000000

// Offsets in struct seccomp_data. An argument has 64 bits, the lower half first on the
// architectures of this program.
const (
	offsetNumber = 0
	offsetArch   = 4
	offsetArg0   = 16
)

func load(offset uint32) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: offset}
}

func ret(action uint32) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: action}
}

func jump(condition uint16, k uint32, yes, no int) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_JMP | condition | unix.BPF_K, Jt: uint8(yes), Jf: uint8(no), K: k}
}

// filter returns a filter that makes the given system calls fail, and every call through another
// architecture's table (seccomp(2)).
func filter(calls []uint32, errno unix.Errno) []unix.SockFilter {
	n := len(calls)
	// guard: probe: x32 calls denied
	// guard: probe: other architectures
	program := []unix.SockFilter{load(offsetArch), jump(unix.BPF_JEQ, auditArch, 0, n+3), load(offsetNumber), jump(unix.BPF_JGE, x32, n+1, 0)}
	for i, call := range calls {
		program = append(program, jump(unix.BPF_JEQ, call, n-i, 0))
	}
	return append(program, ret(unix.SECCOMP_RET_ALLOW), ret(unix.SECCOMP_RET_ERRNO|uint32(errno)))
}

// deny applies the filter of these calls to the whole process. Child processes inherit it.
func deny(calls []uint32, errno unix.Errno) error {
	program := filter(calls, errno)
	// A process without CAP_SYS_ADMIN needs it for the filter.
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("prctl: %w", err)
	}
	return setFilter(program, 0)
}

// setFilter applies a filter to every thread of this process. It needs no_new_privs.
func setFilter(program []unix.SockFilter, flags uintptr) error {
	fprog := unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
	stray, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, flags|unix.SECCOMP_FILTER_FLAG_TSYNC, uintptr(unsafe.Pointer(&fprog)))
	runtime.KeepAlive(program)
	if errno != 0 {
		return fmt.Errorf("seccomp: %w", errno)
	}
	if stray != 0 {
		return fmt.Errorf("seccomp: thread %d has a filter of its own", stray)
	}
	return nil
}
