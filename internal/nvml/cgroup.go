package nvml

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/probe"
)

// FindCgroup returns where the cgroup probe.CgroupFD is in this mount namespace. NVML takes a path
// only, and finds the ancestors by it.
func FindCgroup() (string, error) {
	path, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", probe.CgroupFD))
	if err == nil {
		err = checkCgroup(path)
	}
	return path, err
}

// checkCgroup returns an error unless path is the cgroup probe.CgroupFD: a cgroup of version 2 that
// is not the root.
func checkCgroup(path string) error {
	var given, found unix.Stat_t
	if err := unix.Fstat(probe.CgroupFD, &given); err != nil {
		return fmt.Errorf("descriptor of the cgroup: %w", err)
	}
	var fsys unix.Statfs_t
	if err := unix.Fstatfs(probe.CgroupFD, &fsys); err != nil {
		return fmt.Errorf("descriptor of the cgroup: %w", err)
	}
	if fsys.Type != unix.CGROUP2_SUPER_MAGIC {
		return fmt.Errorf("%s is %w", path, probe.ErrNotCgroup2)
	}
	// guard: probe: the cgroup that was meant
	if err := unix.Lstat(path, &found); err != nil || found.Dev != given.Dev || found.Ino != given.Ino {
		return fmt.Errorf("%s: %w", path, probe.ErrCgroupGone)
	}
	err := unix.Faccessat(probe.CgroupFD, "cgroup.events", unix.F_OK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s is the root, %w", path, probe.ErrNotCgroup2)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

// mountOf returns the directory at which the file system with path is mounted.
func mountOf(path string) (string, error) {
	for dir := path; ; dir = filepath.Dir(dir) {
		var st unix.Statx_t
		if err := unix.Statx(unix.AT_FDCWD, dir, unix.AT_SYMLINK_NOFOLLOW, 0, &st); err != nil {
			return "", &os.PathError{Op: "statx", Path: dir, Err: err}
		}
		if st.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0 || dir == "/" {
			return dir, nil
		}
	}
}
