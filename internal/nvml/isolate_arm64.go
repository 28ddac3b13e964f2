package nvml

import "golang.org/x/sys/unix"

const auditArch = unix.AUDIT_ARCH_AARCH64

var oldDenied []uint32

// unlink lists the calls in denied that remove a file.
var unlink = []uint32{unix.SYS_UNLINKAT}

// legacy lists the calls that exist on this architecture under another name than elsewhere.
var legacy = []uint32{unix.SYS_NEWFSTATAT, unix.SYS_GETRLIMIT}
