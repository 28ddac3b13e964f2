package driver

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/trusted"
)

// tree is the driver root. Paths into it are absolute and mean "in the root".
type tree struct {
	fd   int
	real string // the root on the host, without links
	err  error  // see keep
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
	return &tree{fd: fd, real: real}, nil
}

// Close closes the root.
func (t *tree) Close() { unix.Close(t.fd) }

func fdPath(fd int) string { return "/proc/self/fd/" + strconv.Itoa(fd) }

func (t *tree) host(inner string) string { return path.Join(t.real, inner) }

// resolve returns a descriptor of the file at name, without opening the file (O_PATH): opening a
// device or FIFO could have an effect. Links are followed inside the root. Mounts are crossed,
// because the driver may be on one: a squashfs at /usr/local/nvidia.
func (t *tree) resolve(name string) (fd int, st unix.Stat_t, err error) {
	how := unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS,
	}
	fd, err = -1, unix.EAGAIN
	// EAGAIN: something was renamed or mounted meanwhile, so the kernel could not prove that ".."
	// stays in the root (openat2(2)).
	for try := 0; try < 64 && (errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR)); try++ {
		fd, err = unix.Openat2(t.fd, name, &how)
	}
	if err == nil {
		if err = unix.Fstat(fd, &st); err == nil {
			return fd, st, nil
		}
		unix.Close(fd)
	}
	t.keep(err)
	return -1, unix.Stat_t{}, &fs.PathError{Op: "open", Path: t.host(name), Err: err}
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
	host, err := os.Readlink(fdPath(fd))
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

func (f *file) reopen() (*os.File, error) {
	r, err := os.OpenFile(fdPath(f.fd), os.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	f.tree.keep(err)
	return r, err
}

func (f *file) read(maxSize int64) ([]byte, error) {
	if f.st.Size > maxSize {
		return nil, fmt.Errorf("is larger than %d bytes", maxSize)
	}
	var data []byte
	r, err := f.reopen()
	if err == nil {
		defer r.Close()
		data, err = io.ReadAll(io.LimitReader(r, maxSize))
	}
	if err != nil {
		return nil, fmt.Errorf("cannot be read: %w", err)
	}
	return data, nil
}

// searchable returns an error unless files in a directory may be given to a container. The text
// continues "it …".
func searchable(st *unix.Stat_t) error {
	// On Debian the group staff may write below /usr/local. A file there is used only if it belongs
	// to root.
	dir := *st
	dir.Mode &^= 0o020
	return trusted.RootDirectory(&dir)
}

// usable returns an error unless a file or directory may be given to a container.
func usable(st *unix.Stat_t) error {
	if st.Mode&unix.S_IFMT == unix.S_IFDIR {
		return trusted.RootDirectory(st)
	}
	return trusted.RootFile(st)
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
