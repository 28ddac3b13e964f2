package atomicfile

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Temporary is in the name of a temporary file.
const Temporary = ".nvidia-shim-"

// Write makes the file path with this content and mode, whatever the umask is.
func Write(path string, data []byte, mode os.FileMode) error {
	return write(path, data, func(f *os.File) error { return f.Chmod(mode) })
}

// WriteLike is Write with the owner, mode and SELinux label of the regular file like; mode is used
// if there is no such file. The content is on the disk when it returns.
func WriteLike(path, like string, data []byte, mode os.FileMode) error {
	return write(path, data, func(f *os.File) error {
		var st unix.Stat_t
		switch err := unix.Lstat(like, &st); {
		case err == nil && st.Mode&unix.S_IFMT == unix.S_IFREG:
			if err := f.Chown(int(st.Uid), int(st.Gid)); err != nil {
				return err
			}
			mode = os.FileMode(st.Mode & 0o777)
			label := make([]byte, 512)
			if n, err := unix.Lgetxattr(like, "security.selinux", label); err == nil {
				// Without SELinux the label has no meaning, and cannot always be set.
				_ = unix.Fsetxattr(int(f.Fd()), "security.selinux", label[:n], 0)
			}
		case err != nil && !errors.Is(err, fs.ErrNotExist):
			return &os.PathError{Op: "stat", Path: like, Err: err}
		}
		if err := f.Chmod(mode); err != nil {
			return err
		}
		return f.Sync()
	})
}

func write(path string, data []byte, finish func(*os.File) error) error {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+Temporary+"*")
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err == nil {
		err = finish(f)
	}
	if closed := f.Close(); err == nil {
		err = closed
	}
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		_ = os.Remove(f.Name())
	}
	return err
}
