package nvml

import (
	"fmt"
	"os"
	"slices"

	"golang.org/x/sys/unix"
)

// allowed lists the system calls of the program that suspends, besides those in legacy: what
// libcuda, NVML, glibc and Go need to read files, to use the driver's nodes, to have memory and
// threads, and to wait. Nothing here starts a program, mounts, makes a device node, connects to
// another process, traces or signals it, loads code into the kernel, or changes keys. Mounts are
// read-only, so that few files can be made and removed.
var allowed = []uint32{
	unix.SYS_READ, unix.SYS_READV, unix.SYS_PREAD64, unix.SYS_PREADV, unix.SYS_WRITE, unix.SYS_WRITEV,
	unix.SYS_PWRITE64, unix.SYS_PWRITEV, unix.SYS_OPENAT, unix.SYS_OPENAT2, unix.SYS_CLOSE, unix.SYS_CLOSE_RANGE,
	unix.SYS_FSTAT, unix.SYS_STATX, unix.SYS_STATFS, unix.SYS_FSTATFS, unix.SYS_LSEEK, unix.SYS_READLINKAT,
	unix.SYS_GETDENTS64, unix.SYS_FACCESSAT, unix.SYS_FACCESSAT2, unix.SYS_FTRUNCATE, unix.SYS_FALLOCATE,
	unix.SYS_FCNTL, unix.SYS_FLOCK, unix.SYS_DUP, unix.SYS_DUP3, unix.SYS_PIPE2, unix.SYS_MEMFD_CREATE,
	unix.SYS_UNLINKAT, unix.SYS_MKDIRAT, unix.SYS_SYMLINKAT, unix.SYS_GETCWD, unix.SYS_UMASK, unix.SYS_IOCTL,

	unix.SYS_MMAP, unix.SYS_MUNMAP, unix.SYS_MPROTECT, unix.SYS_MREMAP, unix.SYS_MADVISE, unix.SYS_MSYNC,
	unix.SYS_MINCORE, unix.SYS_MLOCK, unix.SYS_MLOCK2, unix.SYS_MUNLOCK, unix.SYS_BRK, unix.SYS_MEMBARRIER,
	unix.SYS_MBIND, unix.SYS_GET_MEMPOLICY, unix.SYS_SET_MEMPOLICY,

	unix.SYS_FUTEX, unix.SYS_SET_ROBUST_LIST, unix.SYS_GET_ROBUST_LIST, unix.SYS_RSEQ, unix.SYS_SET_TID_ADDRESS,
	unix.SYS_EXIT, unix.SYS_EXIT_GROUP, unix.SYS_RT_SIGACTION, unix.SYS_RT_SIGPROCMASK, unix.SYS_RT_SIGRETURN,
	unix.SYS_RT_SIGTIMEDWAIT, unix.SYS_RT_SIGPENDING, unix.SYS_SIGALTSTACK, unix.SYS_RESTART_SYSCALL,
	unix.SYS_PRCTL, unix.SYS_PIDFD_OPEN,

	unix.SYS_GETPID, unix.SYS_GETPPID, unix.SYS_GETTID, unix.SYS_GETUID, unix.SYS_GETEUID, unix.SYS_GETGID,
	unix.SYS_GETEGID, unix.SYS_GETRESUID, unix.SYS_GETRESGID, unix.SYS_GETGROUPS, unix.SYS_GETPGID, unix.SYS_GETSID,
	unix.SYS_GETRUSAGE, unix.SYS_GETPRIORITY, unix.SYS_CAPGET, unix.SYS_SYSINFO, unix.SYS_UNAME, unix.SYS_GETCPU,
	unix.SYS_SCHED_YIELD, unix.SYS_SCHED_GETAFFINITY, unix.SYS_SCHED_GETPARAM, unix.SYS_SCHED_GETSCHEDULER,
	unix.SYS_SCHED_GET_PRIORITY_MAX, unix.SYS_SCHED_GET_PRIORITY_MIN,

	unix.SYS_CLOCK_GETTIME, unix.SYS_CLOCK_GETRES, unix.SYS_CLOCK_NANOSLEEP, unix.SYS_NANOSLEEP, unix.SYS_GETTIMEOFDAY,
	unix.SYS_GETRANDOM, unix.SYS_PPOLL, unix.SYS_PSELECT6, unix.SYS_EVENTFD2, unix.SYS_EPOLL_CREATE1, unix.SYS_EPOLL_CTL,
	unix.SYS_EPOLL_PWAIT, unix.SYS_EPOLL_PWAIT2, unix.SYS_TIMERFD_CREATE, unix.SYS_TIMERFD_SETTIME, unix.SYS_TIMERFD_GETTIME,

	unix.SYS_BIND, unix.SYS_LISTEN, unix.SYS_ACCEPT4, unix.SYS_GETSOCKNAME, unix.SYS_SETSOCKOPT, unix.SYS_GETSOCKOPT,
}

// refused lists calls that libraries try and can do without. A filter cannot read the flags of
// clone3; without it, libraries use clone. cuInit tries to connect to MPS.
var refused = []uint32{unix.SYS_CLONE3, unix.SYS_CONNECT}

// denyRefused makes the calls in refused fail as if nothing was there.
func denyRefused() error {
	err := deny([]uint32{unix.SYS_CLONE3}, unix.ENOSYS)
	if err == nil {
		err = deny([]uint32{unix.SYS_CONNECT}, unix.ECONNREFUSED) // guard: probe: no connections
	}
	return err
}

// limitCalls leaves the calls in allowed to this process. Others fail as if the kernel did not have
// them, and the kernel's log names them, except those in refused.
func limitCalls() error {
	err := denyRefused()
	if err == nil {
		err = setFilter(allowList(uint32(os.Getpid()), unix.SECCOMP_RET_ERRNO|uint32(unix.ENOSYS)), unix.SECCOMP_FILTER_FLAG_LOG)
	}
	if err != nil {
		return fmt.Errorf("limit system calls: %w", err)
	}
	return nil
}

// allowList returns a filter for the process id pid that allows the calls in allowed. It leaves
// those in refused to another filter, so that they are not logged. Other calls get the action
// other.
func allowList(pid, other uint32) []unix.SockFilter {
	denied := ret(unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM))
	ok := ret(unix.SECCOMP_RET_ALLOW)
	program := []unix.SockFilter{
		load(offsetArch), jump(unix.BPF_JEQ, auditArch, 1, 0), denied,
		load(offsetNumber), jump(unix.BPF_JGE, x32, 0, 1), denied,
	}
	for _, call := range slices.Concat(legacy, allowed, refused) {
		program = append(program, jump(unix.BPF_JEQ, call, 0, 1), ok)
	}
	// Threads, but no processes.
	const thread = unix.CLONE_VM | unix.CLONE_THREAD
	program = append(program, jump(unix.BPF_JEQ, unix.SYS_CLONE, 0, 5), load(offsetArg0),
		unix.SockFilter{Code: unix.BPF_ALU | unix.BPF_AND | unix.BPF_K, K: thread}, jump(unix.BPF_JEQ, thread, 0, 1), ok, denied) // guard: probe: no processes of its own
	// cuInit listens at a Unix socket with an abstract name, which no process of another network
	// namespace can reach. No call connects a socket or sends to an address: that would reach
	// containerd's, and with that the host.
	// guard: probe: Unix sockets alone
	program = append(program, jump(unix.BPF_JEQ, unix.SYS_SOCKET, 0, 4), load(offsetArg0), jump(unix.BPF_JEQ, unix.AF_UNIX, 0, 1), ok, denied)
	// Of this process alone: root's other processes have the same user.
	for _, call := range []uint32{unix.SYS_TGKILL, unix.SYS_PRLIMIT64, unix.SYS_SCHED_SETAFFINITY} {
		program = append(program, jump(unix.BPF_JEQ, call, 0, 5), load(offsetArg0),
			jump(unix.BPF_JEQ, pid, 1, 0), jump(unix.BPF_JEQ, 0, 0, 1), ok, denied) // guard: probe: no signals to others
	}
	return append(program, ret(other)) // guard: probe: system calls allowed
}
