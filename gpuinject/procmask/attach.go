package procmask

import (
	"errors"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/mountns"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/openat"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/procfs"
)

// Dir is where a container sees the mask.
const Dir = "/proc/driver"

// ErrEnded is the error of Attach if the container's init process has ended: no process can start
// in the container any more, masked or not.
var ErrEnded = errors.New("the container's init process has ended")

// Attach mounts the mask on /proc/driver in the mount namespace of the process pid, which must be
// the waiting init process of a created container with the root file system rootfs.
//
// It attaches nothing if that namespace is the caller's own or the host's, if the process has ended
// meanwhile or has another root, or if /proc/driver is not a directory of a procfs that can be
// reached without following a link.
func (m *Mask) Attach(pid int, rootfs string) error {
	var root unix.Stat_t
	if err := unix.Stat(rootfs, &root); err != nil {
		return fmt.Errorf("mask: root file system: %w", err)
	}
	// The pidfd pins the process: if it still runs after its namespace was opened, /proc/PID did
	// not belong to a later process with the same PID (T17).
	pidfd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("mask: process %d: %w", pid, ErrEnded)
	}
	if err != nil {
		return fmt.Errorf("mask: process %d: %w", pid, err)
	}
	defer unix.Close(pidfd)
	if err = m.attach(pid, pidfd, &root); err != nil && hasEnded(pid, pidfd) {
		err = fmt.Errorf("process %d: %w: %w", pid, ErrEnded, err)
	}
	if err != nil {
		return fmt.Errorf("mask /proc/driver: %w", err)
	}
	return nil
}

func (m *Mask) attach(pid, pidfd int, root *unix.Stat_t) error {
	ns, err := os.Open("/proc/" + strconv.Itoa(pid) + "/ns/mnt")
	if err != nil {
		return err
	}
	defer ns.Close()
	stat, err := procfs.Host.Stat(pid)
	if err != nil {
		return err
	}
	if err := unix.PidfdSendSignal(pidfd, 0, nil, 0); err != nil { // guard: mask: pidfd
		return fmt.Errorf("process %d: %w", pid, err)
	}
	if err := checkForeign(ns); err != nil { // guard: mask: not on the host
		return err
	}
	// The container's init process may have ended before the pidfd was opened. When runc exited, it
	// became a child of this process, which is a subreaper.
	if stat.Parent != os.Getpid() { // guard: mask: not on another process
		return fmt.Errorf("process %d does not belong to the container: its init process has ended", pid)
	}
	return mountns.Do(func() error { return m.attachIn(int(ns.Fd()), root) })
}

// hasEnded reports whether a process has ended. An exiting process loses its namespaces before its
// pidfd reports the end, so this waits if the process is exiting.
func hasEnded(pid, pidfd int) bool {
	wait := 0 // milliseconds
	if stat, _ := procfs.Host.Stat(pid); stat.Exiting {
		wait = 1000
	}
	for {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}, wait)
		if !errors.Is(err, unix.EINTR) {
			return n > 0
		}
	}
}

// checkForeign returns an error if ns is the mount namespace of this process or of the host's init
// process: the mask would hide the driver from the host.
func checkForeign(ns *os.File) error {
	var st unix.Stat_t
	if err := unix.Fstat(int(ns.Fd()), &st); err != nil {
		return err
	}
	for _, own := range []string{"/proc/self/ns/mnt", "/proc/1/ns/mnt"} { // guard: mask: process 1
		var o unix.Stat_t
		err := unix.Stat(own, &o)
		if errors.Is(err, unix.EACCES) && own != "/proc/self/ns/mnt" {
			// The init process may have capabilities that containerd was not given (ptrace(2),
			// PTRACE_MODE_READ).
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

// attachIn attaches the mask in a mount namespace. setns(2) leaves the thread's root and working
// directory at the root of the container.
func (m *Mask) attachIn(nsfd int, root *unix.Stat_t) error {
	if err := unix.Setns(nsfd, unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("enter the mount namespace: %w", err)
	}
	// Another container of the pod may have the PID by now, and its init process is also a child of
	// this process (T17).
	var st unix.Stat_t
	if err := unix.Stat("/", &st); err != nil {
		return err
	}
	if st.Dev != root.Dev || st.Ino != root.Ino { // guard: mask: same root file system
		return errors.New("the process has another root file system: the container's init process has ended")
	}
	proc, err := openDirectory(unix.AT_FDCWD, "proc")
	if err != nil {
		return fmt.Errorf("open /proc of the container: %w", err)
	}
	defer unix.Close(proc)
	if err := checkProcfs(proc, false); err != nil { // guard: mask: /proc is procfs
		return err
	}
	// A mount on the way may only be procfs itself: readonlyPaths are bind mounts of it.
	dir, err := openDirectory(proc, "driver")
	if err != nil {
		return fmt.Errorf("open it in the container: %w", err)
	}
	defer unix.Close(dir)
	if err := checkProcfs(dir, true); err != nil { // guard: mask: target is procfs
		return err
	}
	if err := unix.MoveMount(int(m.f.Fd()), "", dir, "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH); err != nil {
		return fmt.Errorf("attach: %w", err)
	}
	return nil
}

// openDirectory opens a directory below another one without following any link.
func openDirectory(dirfd int, name string) (int, error) {
	return openat.Open(dirfd, name, unix.O_DIRECTORY, openat.NoLinks) // guard: mask: no link and no way up
}

// MountAt makes the directory dir, which must not exist, and attaches the mask there, in this
// process' mount namespace: CRIU then mounts it in the container that it restores, before the
// container's processes run.
func (m *Mask) MountAt(dir string) error {
	if err := os.Mkdir(dir, 0o700); err != nil {
		return fmt.Errorf("mask: %w", err)
	}
	if err := unix.MoveMount(int(m.f.Fd()), "", unix.AT_FDCWD, dir, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return errors.Join(fmt.Errorf("mask: mount %s: %w", dir, err), os.Remove(dir))
	}
	return nil
}

// CheckAttached returns an error unless the process pid sees the mask at /proc/driver: the author of
// a forged checkpoint chooses what CRIU mounts, and in which order.
func (m *Mask) CheckAttached(pid int) error {
	var mask, seen unix.Stat_t
	err := unix.Fstat(int(m.f.Fd()), &mask)
	if err != nil {
		return fmt.Errorf("mask: %w", err)
	}
	root, err := openat.Root("/proc/" + strconv.Itoa(pid) + "/root")
	if err != nil {
		return fmt.Errorf("mask: root directory of process %d: %w", pid, err)
	}
	defer unix.Close(root)
	dir, err := openDirectory(root, Dir)
	if err != nil {
		return fmt.Errorf("mask: %s of process %d: %w", Dir, pid, err)
	}
	defer unix.Close(dir)
	if err := unix.Fstat(dir, &seen); err != nil {
		return fmt.Errorf("mask: %w", err)
	}
	if seen.Dev != mask.Dev || seen.Ino != mask.Ino {
		return fmt.Errorf("mask: it is not on %s of process %d", Dir, pid)
	}
	return nil
}

// Unmount undoes MountAt.
func Unmount(dir string) {
	_ = unix.Unmount(dir, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
	_ = unix.Rmdir(dir)
}

// checkProcfs returns an error unless fd is on procfs, or, with orMask, on a read-only tmpfs: what
// runc puts over a directory of linux.maskedPaths.
func checkProcfs(fd int, orMask bool) error {
	var st unix.Statfs_t
	if err := unix.Fstatfs(fd, &st); err != nil {
		return err
	}
	mask := st.Type == unix.TMPFS_MAGIC && st.Flags&unix.ST_RDONLY != 0
	if st.Type != unix.PROC_SUPER_MAGIC && !(orMask && mask) {
		return fmt.Errorf("it is not on procfs (file system type %#x)", st.Type)
	}
	return nil
}
