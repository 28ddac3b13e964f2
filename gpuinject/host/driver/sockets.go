package driver

import (
	"errors"
	"fmt"
	"io/fs"
	"path"

	"golang.org/x/sys/unix"
)

// Socket is where a daemon of the driver listens.
type Socket struct {
	// Dir is the daemon's directory, as a path below a root, and Name what it listens
	// at there.
	Dir, Name string
	// Pipe says that it may be a FIFO as well.
	Pipe bool
}

// LocateSocket returns the host path of the directory in which a daemon listens, if it
// does and nobody else can have put it there (security.md 4): the directory is no link,
// it and all above it are root's and nobody else can write there, but for one thing
// each. A directory that everybody can write to, as /tmp, may be above if it is
// sticky; then what is in it must be root's. And the daemon may run as a user of its
// own who owns its directory, where that lies in one of root's.
//
// An error that is fs.ErrNotExist says that no daemon is there.
func LocateSocket(root string, s Socket) (host string, err error) {
	t, err := openTree(root)
	if err != nil {
		return "", err
	}
	defer t.close()
	fd, dir, err := t.open(s.Dir)
	if err != nil {
		return "", &fs.PathError{Op: "open", Path: t.host(s.Dir), Err: err}
	}
	defer unix.Close(fd)
	if host, _, err = t.name(fd); err != nil {
		return "", err
	}
	var socket unix.Stat_t
	name := path.Join(host, s.Name)
	if err := unix.Fstatat(fd, s.Name, &socket, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		if errors.Is(err, unix.ENOTDIR) {
			return "", refusedSocket(host, "is not a directory")
		}
		return "", &fs.PathError{Op: "stat", Path: name, Err: err}
	}
	if parent, err := t.where(path.Dir(s.Dir)); err != nil {
		return "", err
	} else if host != path.Join(parent, path.Base(s.Dir)) {
		return "", refusedSocket(path.Join(parent, path.Base(s.Dir)), "is a symbolic link")
	}
	kind := socket.Mode & unix.S_IFMT
	switch {
	case dir.Mode&unix.S_IFMT != unix.S_IFDIR:
		return "", refusedSocket(host, "is not a directory")
	case dir.Mode&0o022 != 0:
		return "", refusedSocket(host, "can be written by others than its owner")
	case kind != unix.S_IFSOCK && (!s.Pipe || kind != unix.S_IFIFO):
		return "", refusedSocket(name, "is not a socket")
	case socket.Uid != 0 && socket.Uid != dir.Uid:
		return "", refusedSocket(name, fmt.Sprintf("is owned by uid %d, not by root or the owner of its directory", socket.Uid))
	}
	return host, guarded(host, dir.Uid)
}

// where is the host path of a directory of the root.
func (t *tree) where(dir string) (string, error) {
	fd, _, err := t.open(dir)
	if err != nil {
		return "", &fs.PathError{Op: "open", Path: t.host(dir), Err: err}
	}
	defer unix.Close(fd)
	host, _, err := t.name(fd)
	return host, err
}

// guarded checks the directories above one that uid owns.
func guarded(dir string, uid uint32) error {
	for dir != "/" {
		parent := path.Dir(dir)
		var st unix.Stat_t
		if err := unix.Lstat(parent, &st); err != nil {
			return &fs.PathError{Op: "lstat", Path: parent, Err: err}
		}
		switch open := st.Mode&0o022 != 0; {
		case st.Uid != 0:
			return refusedSocket(parent, fmt.Sprintf("is owned by uid %d, not by root", st.Uid))
		case open && st.Mode&unix.S_ISVTX == 0:
			return refusedSocket(parent, "is a directory that others than root can write to")
		case open && uid != 0:
			return refusedSocket(dir, fmt.Sprintf("is owned by uid %d in a directory that everybody can write to", uid))
		}
		dir, uid = parent, st.Uid
	}
	return nil
}

func refusedSocket(name, reason string) error {
	return fmt.Errorf("%s is not given to containers: it %s", name, reason)
}
