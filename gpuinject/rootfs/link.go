package rootfs

import (
	"errors"
	"io/fs"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"
)

// Symlink makes name a symbolic link to target, with the directories above it that
// the image lacks. What is there already stays, and the error is fs.ErrExist, but for a
// link that leads into the directory own of the container: one to target is what is
// asked for, and another one is replaced. Links and directories belong to the owner of
// the directory that they are in, as with WriteFile, and no link is followed below it.
//
// It is called before `runc create` only, like WriteFile (invariant I4).
func (r *Root) Symlink(name, target, own string) error {
	dirName, base := path.Split(path.Clean("/" + name))
	dir, err := r.directory(dirName)
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	err = unix.Symlinkat(target, dir, base)
	if errors.Is(err, unix.EEXIST) {
		old, lerr := r.readlink(name)
		if lerr != nil || !leadsInto(r.Target(name), own) {
			return &os.PathError{Op: "symlink", Path: name, Err: fs.ErrExist}
		}
		if old == target {
			return nil
		}
		if err = unix.Unlinkat(dir, base, 0); err == nil {
			err = unix.Symlinkat(target, dir, base)
		}
	}
	if err != nil {
		return &os.PathError{Op: "symlink", Path: name, Err: err}
	}
	var st unix.Stat_t
	if err := unix.Fstat(dir, &st); err != nil {
		return &os.PathError{Op: "fstat", Path: dirName, Err: err}
	}
	if int(st.Uid) == os.Geteuid() && int(st.Gid) == os.Getegid() {
		return nil
	}
	if err := unix.Fchownat(dir, base, int(st.Uid), int(st.Gid), unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return &os.PathError{Op: "chown", Path: name, Err: err}
	}
	return nil
}

// CanSymlink tells whether Symlink of the same arguments would find a place: for those
// who may not change the image.
func (r *Root) CanSymlink(name, own string) bool {
	kind, err := r.kind(name, unix.O_NOFOLLOW)
	if err != nil {
		return errors.Is(err, unix.ENOENT)
	}
	return kind == unix.S_IFLNK && leadsInto(r.Target(name), own)
}

func leadsInto(name, dir string) bool { return strings.HasPrefix(name, dir+"/") }

// directory opens a directory, for what is to be made in it, and makes it and those
// above it where they are missing.
func (r *Root) directory(name string) (int, error) {
	fd, err := r.open(name, unix.O_DIRECTORY)
	if errors.Is(err, unix.ENOENT) && path.Clean(name) != "/" {
		parent, perr := r.directory(path.Dir(path.Clean(name)))
		if perr != nil {
			return -1, perr
		}
		unix.Close(parent)
		if err := r.mkdir(name); err != nil {
			return -1, err
		}
		fd, err = r.open(name, unix.O_DIRECTORY)
	}
	if err != nil {
		return -1, &os.PathError{Op: "openat2", Path: name, Err: err}
	}
	return fd, nil
}
