package atomicfile

import (
	"errors"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/rawio"
)

// Temporary is in the name of a temporary file.
const Temporary = ".nvidia-shim-"

// Write makes the file path with this content and mode, whatever the umask is.
func Write(path string, data []byte, mode os.FileMode) error {
	return write(path, data, func(fd int) error { return unix.Fchmod(fd, uint32(mode.Perm())) })
}

// WriteLike is Write with the owner, mode and SELinux label of the regular file like; mode is used
// if there is no such file. The content is on the disk when it returns.
func WriteLike(path, like string, data []byte, mode os.FileMode) error {
	return write(path, data, func(fd int) error {
		var st unix.Stat_t
		switch err := unix.Lstat(like, &st); {
		case err == nil && st.Mode&unix.S_IFMT == unix.S_IFREG:
			if err := unix.Fchown(fd, int(st.Uid), int(st.Gid)); err != nil {
				return err
			}
			mode = os.FileMode(st.Mode & 0o777)
			label := make([]byte, 512)
			if n, err := unix.Lgetxattr(like, "security.selinux", label); err == nil {
				// Without SELinux the label has no meaning, and cannot always be set.
				_ = unix.Fsetxattr(fd, "security.selinux", label[:n], 0)
			}
		case err != nil && !errors.Is(err, fs.ErrNotExist):
			return &os.PathError{Op: "stat", Path: like, Err: err}
		}
		if err := unix.Fchmod(fd, uint32(mode.Perm())); err != nil {
			return err
		}
		return unix.Fsync(fd)
	})
}

func write(path string, data []byte, finish func(fd int) error) error {
	temporary, fd, err := create(filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+Temporary))
	if err != nil {
		return err
	}
	if err = rawio.Write(fd, data); err == nil {
		err = finish(fd)
	}
	if closed := unix.Close(fd); err == nil {
		err = closed
	}
	if err == nil {
		err = unix.Rename(temporary, path)
	}
	if err != nil {
		_ = os.Remove(temporary)
		return &os.PathError{Op: "write", Path: path, Err: err}
	}
	return nil
}

func create(prefix string) (name string, fd int, err error) {
	for range 100 {
		name = prefix + strconv.FormatUint(rand.Uint64(), 36)
		fd, err = unix.Open(name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
		if !errors.Is(err, unix.EEXIST) && !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if err != nil {
		return "", -1, &os.PathError{Op: "open", Path: name, Err: err}
	}
	return name, fd, nil
}
