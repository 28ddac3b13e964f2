package driver

import (
	"fmt"
	"io/fs"
	"path"

	"golang.org/x/sys/unix"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/trusted"
)

// LocateSocket returns the host path of dir, a path below root, in which a daemon listens at the
// socket name, or at a FIFO if pipe is true. Only root or the daemon can have put the socket there:
// the directory is not a link, and it and all directories above it belong to root and are writable
// only by root, with two exceptions. A world-writable directory above it must be sticky, like /tmp;
// then its entry on the path must belong to root. And the daemon may run as a user of its own who
// owns its directory, if the directory above belongs to root.
//
// An error that is fs.ErrNotExist means that there is no daemon.
func LocateSocket(root, dir, name string, pipe bool) (host string, err error) {
	t, err := openTree(root)
	if err != nil {
		return "", err
	}
	defer t.Close()
	d, err := t.open(dir)
	if err != nil {
		return "", err
	}
	defer d.close()
	var socket unix.Stat_t
	file := path.Join(d.host, name)
	if err := unix.Fstatat(d.fd, name, &socket, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return "", &fs.PathError{Op: "stat", Path: file, Err: err}
	}
	parent, err := t.open(path.Dir(dir))
	if err != nil {
		return "", err
	}
	defer parent.close()
	kind, link := socket.Mode&unix.S_IFMT, path.Join(parent.host, path.Base(dir))
	switch {
	case d.host != link: // guard: sockets: no link
		return "", errSocket(link, "is a symbolic link")
	case trusted.WritableByOthers(d.st.Mode): // guard: sockets: mode
		return "", errSocket(d.host, "is writable by users other than its owner")
	case kind != unix.S_IFSOCK && (!pipe || kind != unix.S_IFIFO): // guard: sockets: type
		return "", errSocket(file, "is not a socket")
	case socket.Uid != 0 && socket.Uid != d.st.Uid: // guard: sockets: owner
		return "", errSocket(file, fmt.Sprintf("is owned by uid %d, not by root or the owner of its directory", socket.Uid))
	}
	return d.host, checkAbove(d.host, d.st.Uid) // guard: sockets: directories above
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
			return errSocket(dir, fmt.Sprintf("is owned by uid %d in a world-writable directory", uid))
		}
		dir, uid = parent, st.Uid
	}
	return nil
}

func errSocket(name, reason string) error {
	return fmt.Errorf("%s is not given to containers: it %s", name, reason)
}
