package nvml

import "golang.org/x/sys/unix"

const auditArch = unix.AUDIT_ARCH_X86_64

// oldDenied lists the older forms of the calls in denied.
var oldDenied = []uint32{
	unix.SYS_MKNOD, unix.SYS_MKDIR, unix.SYS_LINK, unix.SYS_SYMLINK, unix.SYS_RENAME, unix.SYS_UNLINK, unix.SYS_RMDIR,
	unix.SYS_CHMOD, unix.SYS_CHOWN, unix.SYS_LCHOWN,
}

// unlink lists the calls in denied that remove a file.
var unlink = []uint32{unix.SYS_UNLINK, unix.SYS_UNLINKAT}

// legacy lists the calls of this architecture that are older forms of those in allowed.
var legacy = []uint32{
	unix.SYS_OPEN, unix.SYS_STAT, unix.SYS_LSTAT, unix.SYS_NEWFSTATAT, unix.SYS_ACCESS, unix.SYS_READLINK, unix.SYS_GETDENTS,
	unix.SYS_DUP2, unix.SYS_PIPE, unix.SYS_UNLINK, unix.SYS_MKDIR, unix.SYS_SYMLINK, unix.SYS_POLL, unix.SYS_SELECT, unix.SYS_EVENTFD, unix.SYS_EPOLL_CREATE,
	unix.SYS_EPOLL_WAIT, unix.SYS_TIME, unix.SYS_GETPGRP, unix.SYS_GETRLIMIT, unix.SYS_ARCH_PRCTL,
}
