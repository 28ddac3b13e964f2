package driver

import (
	"errors"
	"fmt"
	"os"
	"path"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// tree is the driver root. Paths into it are absolute and mean "in the root".
type tree struct {
	fd   int
	real string // the root on the host, without links
}

// identity is a file apart from its names. The base name is part of it because two
// libraries of different names can be hard links of one file.
type identity struct {
	dev, inode uint64
	base       string
}

func openTree(root string) (*tree, error) {
	fd, err := unix.Open(root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", root, err)
	}
	real, err := os.Readlink(fdPath(fd))
	if err != nil {
		unix.Close(fd)
		return nil, err
	}
	return &tree{fd, real}, nil
}

func (t *tree) close() { unix.Close(t.fd) }

func fdPath(fd int) string { return "/proc/self/fd/" + strconv.Itoa(fd) }

// open resolves name inside the root, links included, without opening what is
// there (O_PATH): a device or FIFO must not notice. Mounts are crossed, because
// the driver may be one (hosts.md 1). The caller closes the descriptor.
func (t *tree) open(name string) (int, unix.Stat_t, error) {
	how := unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS,
	}
	var st unix.Stat_t
	fd, err := -1, error(unix.EAGAIN)
	// EAGAIN: something was renamed or mounted meanwhile, and ".." could not be
	// proven to stay in the root (openat2(2)).
	for try := 0; try < 64 && (errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR)); try++ {
		fd, err = unix.Openat2(t.fd, name, &how)
	}
	if err != nil {
		return -1, st, err
	}
	if err := unix.Fstat(fd, &st); err != nil {
		unix.Close(fd)
		return -1, st, err
	}
	return fd, st, nil
}

// name returns the host path of a descriptor that open returned, and the path in
// the root.
func (t *tree) name(fd int) (host, inner string, err error) {
	host, err = os.Readlink(fdPath(fd))
	if err != nil {
		return "", "", err
	}
	if t.real == "/" {
		return host, host, nil
	}
	inner, ok := strings.CutPrefix(host, t.real+"/")
	if !ok {
		return "", "", fmt.Errorf("%s is not below %s", host, t.real)
	}
	return host, "/" + inner, nil
}

// reopen opens for reading the file that an O_PATH descriptor holds.
func reopen(fd int) (*os.File, error) {
	return os.OpenFile(fdPath(fd), os.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
}

// host is the host path of a path in the root, for messages.
func (t *tree) host(inner string) string { return path.Join(t.real, inner) }

// unsafeFile says why a file of the driver root may not be given to a container, or
// "". The text continues "it …".
func unsafeFile(st *unix.Stat_t) string {
	switch {
	case st.Mode&unix.S_IFMT != unix.S_IFREG:
		return "is not a regular file"
	case st.Uid != 0:
		return fmt.Sprintf("is owned by uid %d, not by root", st.Uid)
	case st.Mode&(unix.S_ISUID|unix.S_ISGID) != 0:
		return "is set-user-id or set-group-id"
	case st.Mode&0o002 != 0:
		return "can be written by everybody"
	}
	return ""
}

// unsafeDir says why files of a directory may not be given to a container, or "".
func unsafeDir(st *unix.Stat_t) string {
	switch {
	case st.Mode&unix.S_IFMT != unix.S_IFDIR:
		return "is not a directory"
	case st.Uid != 0:
		return fmt.Sprintf("is owned by uid %d, not by root", st.Uid)
	case st.Mode&0o002 != 0:
		return "is a directory that everybody can write to"
	}
	return ""
}
