package procmask

import (
	"errors"
	"fmt"
	"os"
	"path"
	"slices"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// File is one file of the mask.
type File struct {
	// Path is relative to the masked directory: "gpus/0000:65:00.0/information".
	Path string
	Data []byte
}

// Mask is a read-only tmpfs that is attached nowhere. It vanishes with the
// process that holds it.
type Mask struct {
	f *os.File
}

// maxBytes bounds the tmpfs: the files are a few KiB each.
const maxBytes = "size=4m"

// New assembles a mask of the files. label is the SELinux context of the
// container's mounts (linux.mountLabel), empty where there is none.
//
// The superblock itself is read-only, not just the mount, so that root of a user
// namespace cannot remount it; the file modes are 0444 and the directories 0555.
// New mount API: kernel 5.2.
func New(files []File, label string) (*Mask, error) {
	fsfd, err := unix.Fsopen("tmpfs", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("mask: fsopen: %w", err)
	}
	defer unix.Close(fsfd)
	options := []string{"mode=0555", maxBytes, "source=nvidia-shim"}
	if label != "" {
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
	attrs := unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV | unix.MOUNT_ATTR_NOEXEC
	mfd, err := unix.Fsmount(fsfd, unix.FSMOUNT_CLOEXEC, attrs)
	if err != nil {
		return nil, fmt.Errorf("mask: fsmount: %w", err)
	}
	m := &Mask{f: os.NewFile(uintptr(mfd), "mask")}
	// A process that is being started has copies of this one's files until it is
	// executed, and no file of a file system that becomes read-only may be open for
	// writing: while the files are written, nothing is started.
	tryPidfd()
	syscall.ForkLock.RLock()
	err = m.fill(files)
	syscall.ForkLock.RUnlock()
	if err != nil {
		m.Close()
		return nil, fmt.Errorf("mask: %w", err)
	}
	if err := unix.FsconfigSetFlag(fsfd, "ro"); err != nil {
		m.Close()
		return nil, fmt.Errorf("mask: set read-only: %w", err)
	}
	if err := unix.FsconfigReconfigure(fsfd); err != nil {
		m.Close()
		return nil, fmt.Errorf("mask: make read-only: %w", err)
	}
	return m, nil
}

// tryPidfd has Go's package os find out whether pidfds work. It does so before it first
// starts a process, and starts one of its own for that without taking the lock.
var tryPidfd = sync.OnceFunc(func() {
	if p, err := os.FindProcess(os.Getpid()); err == nil {
		_ = p.Release()
	}
})

// Close gives the mask up; where it is attached it stays.
func (m *Mask) Close() error { return m.f.Close() }

// fill writes the files through the descriptor of the detached mount.
func (m *Mask) fill(files []File) error {
	root := int(m.f.Fd())
	var made []string
	for _, file := range files {
		name := path.Clean(file.Path)
		if path.IsAbs(name) || name == ".." || strings.HasPrefix(name, "../") {
			return fmt.Errorf("file %q is outside the mask", file.Path)
		}
		for i := range name {
			if name[i] != '/' || slices.Contains(made, name[:i]) {
				continue
			}
			if err := unix.Mkdirat(root, name[:i], 0o555); err != nil && !errors.Is(err, unix.EEXIST) {
				return fmt.Errorf("make %s: %w", name[:i], err)
			}
			// Whatever umask the daemon has: programs that are not root read them too.
			if err := unix.Fchmodat(root, name[:i], 0o555, 0); err != nil {
				return fmt.Errorf("chmod %s: %w", name[:i], err)
			}
			made = append(made, name[:i])
		}
		fd, err := unix.Openat(root, name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o444)
		if err != nil {
			return fmt.Errorf("make %s: %w", name, err)
		}
		f := os.NewFile(uintptr(fd), name)
		_, err = f.Write(file.Data)
		if err := errors.Join(err, f.Chmod(0o444), f.Close()); err != nil {
			return fmt.Errorf("write %s: %w", name, err)
		}
	}
	return nil
}
