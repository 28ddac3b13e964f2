package driver

import (
	"fmt"
	"io/fs"
	"path"

	"golang.org/x/sys/unix"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/trusted"
)

// Socket is the place at which a daemon of the driver listens.
type Socket struct {
	// Dir is the daemon's directory, as a path below a root, and Name the socket in it.
	Dir, Name string
	// Pipe is set if it may be a FIFO as well.
	Pipe bool
}

// LocateSocket returns the host path of the directory in which a daemon listens, if only root or
// the daemon can have put the socket there: the directory is no link, and it and all directories
// above belong to root and only root can write to them, with two exceptions. A directory above that
// everybody can write to, like /tmp, may be sticky; then what is in it must be root's. And the
// daemon may run as a user of its own who owns its directory, if that lies in one of root's.
//
// An error that is fs.ErrNotExist means that there is no daemon.
func LocateSocket(root string, s Socket) (host string, err error) {
	t, err := openTree(root)
	if err != nil {
		return "", err
	}
	defer t.Close()
	dir, err := t.open(s.Dir)
	if err != nil {
		return "", err
	}
	defer dir.close()
	var socket unix.Stat_t
	name := path.Join(dir.host, s.Name)
	if err := unix.Fstatat(dir.fd, s.Name, &socket, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return "", &fs.PathError{Op: "stat", Path: name, Err: err}
	}
	parent, err := t.open(path.Dir(s.Dir))
	if err != nil {
		return "", err
	}
	defer parent.close()
	kind := socket.Mode & unix.S_IFMT
	switch {
	case dir.host != path.Join(parent.host, path.Base(s.Dir)):
		return "", errSocket(path.Join(parent.host, path.Base(s.Dir)), "is a symbolic link")
	case trusted.WritableByOthers(dir.st.Mode):
		return "", errSocket(dir.host, "can be written by others than its owner")
	case kind != unix.S_IFSOCK && (!s.Pipe || kind != unix.S_IFIFO):
		return "", errSocket(name, "is not a socket")
	case socket.Uid != 0 && socket.Uid != dir.st.Uid:
		return "", errSocket(name, fmt.Sprintf("is owned by uid %d, not by root or the owner of its directory", socket.Uid))
	}
	return dir.host, checkAbove(dir.host, dir.st.Uid)
}

// checkAbove checks the directories above one that uid owns.
func checkAbove(dir string, uid uint32) error {
	for dir != "/" {
		parent := path.Dir(dir)
		var st unix.Stat_t
		if err := unix.Lstat(parent, &st); err != nil {
			return &fs.PathError{Op: "lstat", Path: parent, Err: err}
		}
		if err := trusted.Parent(&st); err != nil {
			return errSocket(parent, err.Error())
		}
		if trusted.WritableByOthers(st.Mode) && uid != 0 {
			return errSocket(dir, fmt.Sprintf("is owned by uid %d in a directory that everybody can write to", uid))
		}
		dir, uid = parent, st.Uid
	}
	return nil
}

func errSocket(name, reason string) error {
	return fmt.Errorf("%s is not given to containers: it %s", name, reason)
}
