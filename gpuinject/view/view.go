package view

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/mountns"
)

// File is one file of a view.
type File struct {
	// Source is the file on the host: absolute, no symbolic link. "" where Data is.
	Source string
	// Data is the content of a file that no host has.
	Data []byte
	// Name is where it is in the view: "lib64/libcuda.so.580.159.04".
	Name string
	// Links are symbolic links beside it, by base name: "libcuda.so.1".
	Links []string
}

// Spec is what a view holds.
type Spec struct {
	// Driver identifies the driver's files as they are now; a view of another
	// driver is out of date.
	Driver string
	Files  []File
}

// grace is how long a view of an older driver stays after its last use, so that
// no create that has just chosen it finds it gone.
var grace = time.Hour

// key is the name of the view's directory: the driver first, so that views of
// other drivers can be told by name.
func (s Spec) key() string {
	// Quoted, so that no two lists are the same text. Not JSON, whose encoder has to get
	// to know the type first, in each shim.
	var b []byte
	for _, f := range s.Files {
		b = strconv.AppendQuote(b, f.Source)
		b = strconv.AppendQuote(b, f.Name)
		if f.Data != nil {
			b = strconv.AppendQuote(append(b, '='), string(f.Data))
		}
		for _, link := range f.Links {
			b = strconv.AppendQuote(b, link)
		}
		b = append(b, '\n')
	}
	return short([]byte(s.Driver)) + "-" + short(b)
}

func short(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:8])
}

// Path is where the view for spec is, or would be.
func (s *State) Path(spec Spec) string {
	return filepath.Join(s.dir, "view", spec.key(), "root")
}

// Ensure returns the directory of the view for spec, building it where this host
// has not got it yet. What it returns is a mount whose whole tree is read-only,
// nosuid and nodev.
func (s *State) Ensure(spec Spec) (string, error) {
	root := s.Path(spec)
	dir := filepath.Dir(root)
	if mounted(root) {
		// The time of last use, for collect.
		_ = unix.UtimesNanoAt(unix.AT_FDCWD, dir, nil, 0)
		return root, nil
	}
	if err := os.MkdirAll(root, 0o700); err != nil {
		return "", fmt.Errorf("driver view: %w", err)
	}
	lock, err := s.Lock("view/lock", lockTimeout)
	if errors.Is(err, ErrBusy) {
		return "", fmt.Errorf("driver view: lock: another shim has held it for %s", lockTimeout)
	}
	if err != nil {
		return "", fmt.Errorf("driver view: lock: %w", err)
	}
	defer lock.Close()
	if mounted(root) {
		return root, nil
	}
	if err := s.keepPrivate(); err != nil {
		return "", fmt.Errorf("driver view: %w", err)
	}
	if err := build(root, spec.Files); err != nil {
		return "", fmt.Errorf("driver view: %w", err)
	}
	s.collect(short([]byte(spec.Driver)))
	return root, nil
}

// lockTimeout is how long a view that another shim builds is waited for. Building
// takes milliseconds; a shim that was stopped in the middle must not stop all.
const lockTimeout = 10 * time.Second

// keepPrivate makes the directory of the views a private mount where the state
// directory is on a shared one, as /run is under systemd: a view attached to a
// shared mount is copied, file by file, into every mount namespace that follows it.
// It is called with the lock held.
func (s *State) keepPrivate() error {
	dir := filepath.Join(s.dir, "view")
	if mounted(dir) {
		return nil
	}
	shared, err := onSharedMount(dir)
	if err != nil || !shared {
		return err
	}
	if err := unix.Mount(dir, dir, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("bind %s: %w", dir, err)
	}
	if err := unix.Mount("", dir, "", unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make %s private: %w", dir, err)
	}
	return nil
}

// onSharedMount tells whether dir is on a mount with shared propagation
// (mount_namespaces(7); proc_pid_mountinfo(5), optional fields).
func onSharedMount(dir string) (bool, error) {
	real, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return false, err
	}
	data, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return false, err
	}
	longest, shared := -1, false
	for line := range strings.Lines(string(data)) {
		fields := strings.Fields(line)
		if len(fields) < 7 {
			continue
		}
		at := fields[4]
		if at != "/" && real != at && !strings.HasPrefix(real, at+"/") || len(at) < longest {
			continue
		}
		longest, shared = len(at), false
		for _, option := range fields[6:] {
			if option == "-" {
				break
			}
			shared = shared || strings.HasPrefix(option, "shared:")
		}
	}
	return shared, nil
}

// mounted tells whether dir is the root of a mount in this mount namespace.
// STATX_ATTR_MOUNT_ROOT: kernel 5.8.
func mounted(dir string) bool {
	var stx unix.Statx_t
	err := unix.Statx(unix.AT_FDCWD, dir, unix.AT_SYMLINK_NOFOLLOW|unix.AT_NO_AUTOMOUNT, unix.STATX_TYPE, &stx)
	return err == nil && stx.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0
}

// build assembles the view on the directory root in a mount namespace of its own
// and attaches the finished tree to root in ours, in one step. A mount tree can be
// put together unattached only from kernel 6.15 on; a clone of an attached one
// works from 5.2 on.
func build(root string, files []File) error {
	tree := -1
	err := mountns.Do(func() (err error) {
		if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
			return fmt.Errorf("unshare: %w", err)
		}
		if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
			return fmt.Errorf("make mounts private: %w", err)
		}
		if err := assemble(root, files); err != nil {
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
	if err := unix.MoveMount(tree, "", unix.AT_FDCWD, root, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return fmt.Errorf("attach: %w", err)
	}
	// Not shared with whoever mounted the state directory's file system shared.
	if err := unix.Mount("", root, "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make it private: %w", err)
	}
	return nil
}

const bindFlags = unix.MS_RDONLY | unix.MS_NOSUID | unix.MS_NODEV

// assemble mounts a tmpfs on root and fills it. It runs in a mount namespace that
// ends with its thread.
func assemble(root string, files []File) error {
	// Programs that are not root go through its directories, whatever umask the daemon
	// has. The thread's is its own (osthread).
	old := unix.Umask(0o022)
	defer unix.Umask(old)
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
			if strings.Contains(link, "/") || link == path.Base(name) {
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

// write makes a file. No process is started meanwhile: one that had it open for writing
// until its exec would keep the tmpfs from becoming read-only.
func write(name string, data []byte) error {
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	return os.WriteFile(name, data, 0o444)
}

// bind makes target a read-only bind of the regular file source. Files that could
// raise privileges or that others than root can write are refused (T63): nosuid
// makes a setuid bit inert, but such a file is no driver file to begin with.
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
	switch {
	case st.Mode&unix.S_IFMT != unix.S_IFREG:
		return errors.New("is not a regular file")
	case st.Mode&(unix.S_ISUID|unix.S_ISGID) != 0:
		return errors.New("has a setuid or setgid bit")
	case st.Mode&0o002 != 0:
		return errors.New("can be written by anyone")
	}
	// Made without being opened: a process that is being started meanwhile would have
	// it open for writing, and the tmpfs could not be made read-only.
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

// collect takes views of other drivers than the present one off the host. It holds
// the lock; what fails is tried again with the next new view.
func (s *State) collect(driver string) {
	entries, _ := os.ReadDir(filepath.Join(s.dir, "view"))
	for _, e := range entries {
		info, err := e.Info()
		if err != nil || !e.IsDir() || strings.HasPrefix(e.Name(), driver+"-") || time.Since(info.ModTime()) < grace {
			continue
		}
		dir := filepath.Join(s.dir, "view", e.Name())
		root := filepath.Join(dir, "root")
		for mounted(root) {
			if unix.Unmount(root, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW) != nil {
				break
			}
		}
		_ = os.Remove(root)
		_ = os.Remove(dir)
	}
}

// Remove unmounts every view and removes the state directory: for an
// administrator who uninstalls, and for tests.
func (s *State) Remove() error {
	roots, err := filepath.Glob(filepath.Join(s.dir, "view", "*", "root"))
	if err != nil {
		return err
	}
	for _, root := range append(roots, filepath.Join(s.dir, "view")) {
		for mounted(root) {
			if err := unix.Unmount(root, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
				return &os.PathError{Op: "unmount", Path: root, Err: err}
			}
		}
	}
	return os.RemoveAll(s.dir)
}
