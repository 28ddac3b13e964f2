package driver

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/openat"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/trusted"
)

// tree is the driver root. Paths into it are absolute and mean "in the root".
type tree struct {
	fd   int
	real string // the root on the host, without links
	err  error  // see keep
}

func openTree(root string) (*tree, error) {
	fd, err := openat.Root(root)
	if err != nil {
		return nil, err
	}
	real, err := os.Readlink(openat.Path(fd))
	if err != nil {
		unix.Close(fd)
		return nil, err
	}
	return &tree{fd: fd, real: real}, nil
}

// Close closes the root.
func (t *tree) Close() { unix.Close(t.fd) }

func (t *tree) host(inner string) string { return path.Join(t.real, inner) }

// resolve returns a descriptor of the file at name, without opening the file (O_PATH): opening a
// device or FIFO could have an effect. Links are followed inside the root. Mounts are crossed,
// because the driver may be on one: a squashfs at /usr/local/nvidia.
func (t *tree) resolve(name string) (fd int, st unix.Stat_t, err error) {
	// guard: root's files: links inside the driver root
	if fd, st, err = openat.Stat(t.fd, name, 0, openat.Links); err != nil {
		t.keep(err)
		err = &fs.PathError{Op: "open", Path: t.host(name), Err: err}
	}
	return fd, st, err
}

// keep keeps the first error that is not about the file: this process or the host has run out of
// descriptors or memory, or the disk fails.
func (t *tree) keep(err error) {
	isShort := func(e unix.Errno) bool { return errors.Is(err, e) }
	if t.err == nil && slices.ContainsFunc([]unix.Errno{unix.EMFILE, unix.ENFILE, unix.ENOMEM, unix.EIO}, isShort) {
		t.err = err
	}
}

// file is a file or directory of the driver root. The caller of open closes it.
type file struct {
	tree *tree
	fd   int
	st   unix.Stat_t
	// host is its path on the host and inner its path in the root, both without links.
	host, inner string
}

// open resolves name. An error that is fs.ErrNotExist means that there is no such file.
func (t *tree) open(name string) (*file, error) {
	fd, st, err := t.resolve(name)
	if err != nil {
		return nil, err
	}
	host, err := os.Readlink(openat.Path(fd))
	inner, below := strings.CutPrefix(host, strings.TrimSuffix(t.real, "/")+"/")
	if err == nil && !below && host != t.real {
		err = fmt.Errorf("%s is not below %s", host, t.real)
	}
	if err != nil {
		unix.Close(fd)
		return nil, err
	}
	return &file{t, fd, st, host, "/" + inner}, nil
}

func (f *file) close() { unix.Close(f.fd) }

// searchable returns an error unless files in a directory may be given to a container. The text
// continues "it …".
func searchable(st *unix.Stat_t) error {
	// On Debian the group staff may write below /usr/local. A file there is used only if it belongs
	// to root.
	dir := *st
	dir.Mode &^= 0o020
	return trusted.RootDirectory(&dir) // guard: root's files: driver's directories
}

// usable returns an error unless a file or directory may be given to a container.
func usable(st *unix.Stat_t) error {
	if st.Mode&unix.S_IFMT == unix.S_IFDIR {
		return trusted.RootDirectory(st)
	}
	return trusted.RootFile(st) // guard: root's files: driver's data
}

// Locate returns the host path of another file or directory below root. Links are followed inside
// the root, and the file must pass the same checks as the driver's. An error that is fs.ErrNotExist
// means that nothing is there.
func Locate(root, name string) (host string, err error) {
	t, err := openTree(root)
	if err != nil {
		return "", err
	}
	defer t.Close()
	f, err := t.open(name)
	if err != nil {
		return "", err
	}
	defer f.close()
	if err := usable(&f.st); err != nil {
		return "", fmt.Errorf("%s is not used: it %w", f.host, err)
	}
	return f.host, nil
}
