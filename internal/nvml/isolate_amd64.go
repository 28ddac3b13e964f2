package nvml

import "golang.org/x/sys/unix"

const auditArch = unix.AUDIT_ARCH_X86_64

// denied lists the system calls that start a program, make, rename, truncate or remove a file by
// its name, change its owner or mode, mount, or load a module, and io_uring, which can do the same.
var denied = []uint32{
	unix.SYS_EXECVE, unix.SYS_EXECVEAT,
	unix.SYS_MKNOD, unix.SYS_MKNODAT, unix.SYS_MKDIR, unix.SYS_MKDIRAT,
	unix.SYS_LINK, unix.SYS_LINKAT, unix.SYS_SYMLINK, unix.SYS_SYMLINKAT,
	unix.SYS_RENAME, unix.SYS_RENAMEAT, unix.SYS_RENAMEAT2,
	unix.SYS_UNLINK, unix.SYS_UNLINKAT, unix.SYS_RMDIR,
	unix.SYS_CHMOD, unix.SYS_FCHMOD, unix.SYS_FCHMODAT, unix.SYS_FCHMODAT2,
	unix.SYS_CHOWN, unix.SYS_FCHOWN, unix.SYS_LCHOWN, unix.SYS_FCHOWNAT,
	unix.SYS_IO_URING_SETUP, unix.SYS_TRUNCATE, unix.SYS_MOUNT, unix.SYS_MOUNT_SETATTR, unix.SYS_MOVE_MOUNT,
	unix.SYS_OPEN_TREE, unix.SYS_OPEN_TREE_ATTR, unix.SYS_FSOPEN, unix.SYS_FSMOUNT, unix.SYS_FSPICK,
	unix.SYS_INIT_MODULE, unix.SYS_FINIT_MODULE, unix.SYS_DELETE_MODULE,
}

// unlink lists the calls in denied that remove a file.
var unlink = []uint32{unix.SYS_UNLINK, unix.SYS_UNLINKAT}

// legacy lists the calls of this architecture that are older forms of those in allowed.
var legacy = []uint32{
	unix.SYS_OPEN, unix.SYS_STAT, unix.SYS_LSTAT, unix.SYS_NEWFSTATAT, unix.SYS_ACCESS, unix.SYS_READLINK, unix.SYS_GETDENTS,
	unix.SYS_DUP2, unix.SYS_PIPE, unix.SYS_UNLINK, unix.SYS_MKDIR, unix.SYS_SYMLINK, unix.SYS_POLL, unix.SYS_SELECT, unix.SYS_EVENTFD, unix.SYS_EPOLL_CREATE,
	unix.SYS_EPOLL_WAIT, unix.SYS_TIME, unix.SYS_GETPGRP, unix.SYS_GETRLIMIT, unix.SYS_ARCH_PRCTL,
}
