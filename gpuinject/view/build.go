package view

import (
	"errors"
	"fmt"
	"os"
	"path"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/mountns"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/openat"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/trusted"
)

// File is one file of a view.
type File struct {
	// Source is the file on the host: an absolute path that is no symbolic link. It is "" if Data
	// is set.
	Source string
	// Data is the content of a file that the host lacks.
	Data []byte
	// Name is the path in the view: "lib64/libcuda.so.580.159.04".
	Name string
	// Links are symbolic links beside it, by base name: "libcuda.so.1".
	Links []string
}

// build assembles the view on the directory root in a private mount namespace and attaches the
// finished tree to root in ours, in one step. A detached mount tree can be assembled only since
// kernel 6.15; an attached one can be cloned since 5.2.
func build(root string, files []File) error {
	tree := -1
	err := mountns.Do(func() (err error) {
		if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
			return fmt.Errorf("unshare: %w", err)
		}
		if err := assemble(root, files); err != nil { // below a private mount: see makePrivate
			return err
		}
		tree, err = unix.OpenTree(unix.AT_FDCWD, root, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE)
		if err != nil {
			return fmt.Errorf("clone the tree: %w", err)
		}
		return nil
	})
	if err != nil {
		return err
	}
	defer unix.Close(tree)
	if mounted(root) {
		return nil // built meanwhile by a process that could not get the lock, either
	}
	if err := unix.MoveMount(tree, "", unix.AT_FDCWD, root, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return fmt.Errorf("attach: %w", err)
	}
	return nil
}

const bindFlags = unix.MS_RDONLY | unix.MS_NOSUID | unix.MS_NODEV // guard: view: read-only; view: nosuid, nodev

// assemble mounts a tmpfs on root and fills it.
func assemble(root string, files []File) error {
	// Programs of other users search its directories, whatever umask the daemon has. The umask is
	// this thread's own (mountns).
	defer unix.Umask(unix.Umask(0o022))
	if err := unix.Mount("nvidia-shim", root, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=0755,size=1m"); err != nil {
		return fmt.Errorf("mount tmpfs: %w", err)
	}
	for _, f := range files {
		name := path.Clean("/" + f.Name)
		target := root + name
		if err := os.MkdirAll(path.Dir(target), 0o755); err != nil {
			return err
		}
		if f.Data != nil {
			if err := write(target, f.Data); err != nil {
				return err
			}
		} else if err := bind(f.Source, target); err != nil {
			return fmt.Errorf("%s: %w", f.Source, err)
		}
		for _, link := range f.Links {
			if strings.Contains(link, "/") || link == path.Base(name) { // guard: view: no path as a link's name
				continue
			}
			if err := os.Symlink(path.Base(name), path.Join(path.Dir(target), link)); err != nil && !errors.Is(err, os.ErrExist) {
				return err
			}
		}
	}
	if err := unix.Mount("", root, "", unix.MS_REMOUNT|bindFlags, ""); err != nil {
		return fmt.Errorf("make the tmpfs read-only: %w", err)
	}
	return nil
}

// write makes a file. No process may be started meanwhile: until its exec it would have the file
// open for writing and keep the tmpfs from becoming read-only.
func write(name string, data []byte) error {
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	return os.WriteFile(name, data, 0o444)
}

// bind makes target a read-only bind of the regular file source. A file that could raise
// privileges, or that users other than root can write, is refused (T63).
func bind(source, target string) error {
	fd, err := unix.Open(source, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if err := trusted.RootFile(&st); err != nil { // guard: root's files: views
		return err
	}
	// Mknod does not open the file: see write.
	if err := unix.Mknod(target, unix.S_IFREG|0o444, 0); err != nil {
		return &os.PathError{Op: "mknod", Path: target, Err: err}
	}
	tree, err := unix.OpenTree(fd, "", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_EMPTY_PATH)
	if err != nil {
		return fmt.Errorf("open_tree: %w", err)
	}
	defer unix.Close(tree)
	if err := unix.MoveMount(tree, "", unix.AT_FDCWD, target, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return fmt.Errorf("bind: %w", err)
	}
	if err := unix.Mount("", target, "", unix.MS_REMOUNT|unix.MS_BIND|bindFlags, ""); err != nil {
		return fmt.Errorf("make the bind read-only: %w", err)
	}
	return nil
}

// mounted reports whether dir is the root of a mount in this mount namespace.
func mounted(dir string) bool { return openat.IsMountPoint(unix.AT_FDCWD, dir) }
