package procmask

import (
	"errors"
	"fmt"
	"os"
	"path"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/mountns"
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
	err = mountns.Do(func() error { return fill(mfd, files) })
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

// fill writes the files through root, the descriptor of the detached mount. It runs on
// a thread of its own, whose umask is no other thread's: programs that are not root read
// the files too, whatever umask the daemon has.
func fill(root int, files []File) error {
	defer unix.Umask(unix.Umask(0))
	made := map[string]bool{}
	for _, file := range files {
		name := path.Clean(file.Path)
		if path.IsAbs(name) || name == ".." || strings.HasPrefix(name, "../") {
			return fmt.Errorf("file %q is outside the mask", file.Path)
		}
		for i := range name {
			if name[i] != '/' || made[name[:i]] {
				continue
			}
			if err := unix.Mkdirat(root, name[:i], 0o555); err != nil {
				return fmt.Errorf("make %s: %w", name[:i], err)
			}
			made[name[:i]] = true
		}
		fd, err := unix.Openat(root, name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o444)
		if err != nil {
			return fmt.Errorf("make %s: %w", name, err)
		}
		if err := errors.Join(write(fd, file.Data), unix.Close(fd)); err != nil {
			return fmt.Errorf("write %s: %w", name, err)
		}
	}
	return nil
}

// write writes all of data. System calls alone: package os would ask what kind of file
// it is.
func write(fd int, data []byte) error {
	for len(data) > 0 {
		n, err := unix.Write(fd, data)
		if err != nil && !errors.Is(err, unix.EINTR) {
			return err
		}
		data = data[max(n, 0):]
	}
	return nil
}
