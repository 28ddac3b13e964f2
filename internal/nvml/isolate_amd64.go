package nvml

import "golang.org/x/sys/unix"

const auditArch = unix.AUDIT_ARCH_X86_64

// denied are the system calls that start a program, make, rename or remove a file, change its owner
// or mode, or load a module.
var denied = []uint32{
	unix.SYS_EXECVE, unix.SYS_EXECVEAT,
	unix.SYS_MKNOD, unix.SYS_MKNODAT, unix.SYS_MKDIR, unix.SYS_MKDIRAT,
	unix.SYS_LINK, unix.SYS_LINKAT, unix.SYS_SYMLINK, unix.SYS_SYMLINKAT,
	unix.SYS_RENAME, unix.SYS_RENAMEAT, unix.SYS_RENAMEAT2,
	unix.SYS_UNLINK, unix.SYS_UNLINKAT, unix.SYS_RMDIR,
	unix.SYS_CHMOD, unix.SYS_FCHMOD, unix.SYS_FCHMODAT, unix.SYS_FCHMODAT2,
	unix.SYS_CHOWN, unix.SYS_FCHOWN, unix.SYS_LCHOWN, unix.SYS_FCHOWNAT,
	unix.SYS_INIT_MODULE, unix.SYS_FINIT_MODULE, unix.SYS_DELETE_MODULE,
}

// unlink are the calls of denied that remove a file.
var unlink = []uint32{unix.SYS_UNLINK, unix.SYS_UNLINKAT}
