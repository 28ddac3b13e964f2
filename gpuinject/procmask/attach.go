package procmask

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/mountns"
)

// Attach mounts the mask on target, an absolute path below /proc, in the mount
// namespace of the process pid, which must be the waiting init process of a
// created container.
//
// It refuses, and attaches nothing, where that namespace is the caller's own or
// the host's, where the process ended meanwhile, or where target is not a
// directory of a procfs reached without any link.
func (m *Mask) Attach(pid int, target string) error {
	rel, ok := strings.CutPrefix(target, "/proc/")
	if !ok {
		return fmt.Errorf("mask: %s is not below /proc", target)
	}
	// The pidfd pins the process: if it answers after the namespace was opened,
	// /proc/PID was not a later process of the same number (T17).
	pidfd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return fmt.Errorf("mask: process %d: %w", pid, err)
	}
	defer unix.Close(pidfd)
	ns, err := os.Open("/proc/" + strconv.Itoa(pid) + "/ns/mnt")
	if err != nil {
		return fmt.Errorf("mask: %w", err)
	}
	defer ns.Close()
	if err := unix.PidfdSendSignal(pidfd, 0, nil, 0); err != nil {
		return fmt.Errorf("mask: process %d ended: %w", pid, err)
	}
	if err := foreign(ns); err != nil {
		return fmt.Errorf("mask: %w", err)
	}
	err = mountns.Do(func() error { return m.attachIn(int(ns.Fd()), rel) })
	if err != nil {
		return fmt.Errorf("mask %s: %w", target, err)
	}
	return nil
}

// foreign makes sure that ns is neither this process' mount namespace nor that of
// the host's first process: the mask would hide the driver from the host.
func foreign(ns *os.File) error {
	var st unix.Stat_t
	if err := unix.Fstat(int(ns.Fd()), &st); err != nil {
		return err
	}
	for _, own := range []string{"/proc/self/ns/mnt", "/proc/1/ns/mnt"} {
		var o unix.Stat_t
		err := unix.Stat(own, &o)
		if errors.Is(err, unix.EACCES) && own != "/proc/self/ns/mnt" {
			// The first process may hold capabilities that containerd was not given
			// (ptrace(2), PTRACE_MODE_READ); the comparison with our own stands.
			continue
		}
		if err != nil {
			return err
		}
		if o.Dev == st.Dev && o.Ino == st.Ino {
			return errors.New("the container shares the mount namespace of the host")
		}
	}
	return nil
}

// attachIn runs on a thread of its own. setns(2) into a mount namespace needs a
// file system context that no other thread shares, and leaves root and working
// directory at the root of the container.
func (m *Mask) attachIn(nsfd int, rel string) error {
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return fmt.Errorf("unshare: %w", err)
	}
	if err := unix.Setns(nsfd, unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("enter the mount namespace: %w", err)
	}
	proc, err := openBeneath(unix.AT_FDCWD, "proc")
	if err != nil {
		return fmt.Errorf("open /proc of the container: %w", err)
	}
	defer unix.Close(proc)
	if err := isProcfs(proc); err != nil {
		return err
	}
	// A mount on the way may only be procfs again (readonlyPaths bind it on itself).
	dir, err := openBeneath(proc, rel)
	if err != nil {
		return fmt.Errorf("open it in the container: %w", err)
	}
	defer unix.Close(dir)
	if err := isProcfsOrMask(dir); err != nil {
		return err
	}
	if err := unix.MoveMount(int(m.f.Fd()), "", dir, "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH); err != nil {
		return fmt.Errorf("attach: %w", err)
	}
	return nil
}

// openBeneath opens a directory without following any link.
func openBeneath(dirfd int, name string) (int, error) {
	return unix.Openat2(dirfd, name, &unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS,
	})
}

// isProcfsOrMask also takes a read-only tmpfs: what runc puts over a directory of
// linux.maskedPaths, and an earlier mask that a checkpoint brought back.
func isProcfsOrMask(fd int) error {
	var st unix.Statfs_t
	if err := unix.Fstatfs(fd, &st); err == nil && st.Type == unix.TMPFS_MAGIC && st.Flags&unix.ST_RDONLY != 0 {
		return nil
	}
	return isProcfs(fd)
}

func isProcfs(fd int) error {
	var st unix.Statfs_t
	if err := unix.Fstatfs(fd, &st); err != nil {
		return err
	}
	if st.Type != unix.PROC_SUPER_MAGIC {
		return fmt.Errorf("it is not on procfs (file system type %#x)", st.Type)
	}
	return nil
}
