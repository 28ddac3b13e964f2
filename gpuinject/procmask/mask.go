package procmask

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/mountns"
)

// File is one file of the mask.
type File struct {
	// Path is relative to /proc/driver: "nvidia/gpus/0000:65:00.0/information".
	Path string
	Data []byte
}

// Mask is a detached, read-only tmpfs. It disappears with the process that holds it.
type Mask struct {
	f *os.File
}

// New assembles a mask of the files. label is the SELinux context of the container's mounts
// (linux.mountLabel), empty if it has none.
//
// The superblock itself is read-only, not just the mount, so that root in a user namespace cannot
// remount it; the file modes are 0444 and the directories 0555. New mount API: kernel 5.2.
func New(files []File, label string) (m *Mask, err error) {
	fsfd, err := unix.Fsopen("tmpfs", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("mask: fsopen: %w", err)
	}
	defer unix.Close(fsfd)
	// The files are a few KiB each.
	options := []string{"mode=0555", "size=4m", "source=nvidia-shim"}
	if label != "" { // guard: mask: mount label
		options = append(options, "context="+label)
	}
	for _, o := range options {
		key, value, _ := strings.Cut(o, "=")
		if err := unix.FsconfigSetString(fsfd, key, value); err != nil {
			return nil, fmt.Errorf("mask: set %s: %w", o, err)
		}
	}
	if err := unix.FsconfigCreate(fsfd); err != nil {
		return nil, fmt.Errorf("mask: create tmpfs: %w", err)
	}
	// guard: mask: nosuid, nodev, noexec
	attrs := unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV | unix.MOUNT_ATTR_NOEXEC
	mfd, err := unix.Fsmount(fsfd, unix.FSMOUNT_CLOEXEC, attrs)
	if err != nil {
		return nil, fmt.Errorf("mask: fsmount: %w", err)
	}
	m = &Mask{f: os.NewFile(uintptr(mfd), "mask")}
	// On the first use of pidfds, package os starts a process without syscall.ForkLock. Do it now,
	// not in fill.
	if p, err := os.FindProcess(os.Getpid()); err == nil {
		_ = p.Release()
	}
	err = mountns.Do(func() error { return fill(mfd, files) })
	if err == nil {
		err = unix.FsconfigSetFlag(fsfd, "ro") // guard: mask: read-only
	}
	if err == nil {
		err = unix.FsconfigReconfigure(fsfd)
	}
	if err != nil {
		m.Close()
		return nil, fmt.Errorf("mask: fill and make read-only: %w", err)
	}
	return m, nil
}

// Close releases the mask, if there is one; an attached mask stays attached.
func (m *Mask) Close() error {
	if m == nil {
		return nil
	}
	return m.f.Close()
}

// fill writes the files through mfd, the descriptor of the detached mount.
func fill(mfd int, files []File) error {
	// Programs of other users read the files too, whatever umask the daemon has. The umask is this
	// thread's own (mountns).
	defer unix.Umask(unix.Umask(0))
	// A process that is being started has copies of this process' descriptors until its exec, and a
	// file system with a file that is open for writing cannot become read-only.
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	made := map[string]bool{}
	for _, f := range files {
		if !filepath.IsLocal(f.Path) { // guard: mask: files below it
			return fmt.Errorf("%q is not below the mask", f.Path)
		}
		for i, c := range f.Path {
			if dir := f.Path[:i]; c == '/' && !made[dir] {
				made[dir] = true
				if err := unix.Mkdirat(mfd, dir, 0o555); err != nil {
					return &os.PathError{Op: "mkdir", Path: dir, Err: err}
				}
			}
		}
		if err := write(mfd, f); err != nil {
			return &os.PathError{Op: "write", Path: f.Path, Err: err}
		}
	}
	return nil
}

func write(mfd int, f File) error {
	fd, err := unix.Openat(mfd, f.Path, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_CLOEXEC, 0o444)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	n, err := unix.Write(fd, f.Data)
	if err == nil && n < len(f.Data) {
		err = unix.ENOSPC
	}
	return err
}
