package openat

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/rawio"
)

// Way is what a name may lead through.
type Way uint64

const (
	// inRoot keeps every name in the root, as chroot does.
	inRoot Way = unix.RESOLVE_IN_ROOT // guard: image: inside its root
	// Links follows links inside the root, but no magic ones, and crosses mounts: for trees of an
	// administrator.
	Links = inRoot | unix.RESOLVE_NO_MAGICLINKS // guard: records: no magic link
	// NoLinks crosses mounts. A link is ELOOP.
	NoLinks = inRoot | unix.RESOLVE_NO_SYMLINKS // guard: image: no link followed by the kernel
	// OneMount is for images: a link is ELOOP, and another mount EXDEV.
	OneMount = NoLinks | unix.RESOLVE_NO_XDEV // guard: image: no other mount
)

var (
	// ErrNotRegular means that a name is a FIFO, a device node, a socket or a directory, but a file
	// is needed.
	ErrNotRegular = errors.New("is not a regular file")
	// ErrTooLarge means that a file or directory exceeds the caller's limit, which follows.
	ErrTooLarge = errors.New("is larger than")
)

// Root opens a directory that the caller chose, for Open. The caller closes it.
func Root(dir string) (fd int, err error) {
	return rawio.Open(dir, unix.O_PATH|unix.O_DIRECTORY)
}

// Open opens name inside root, absolute or not, as an O_PATH descriptor, which the caller closes. The
// error is a unix.Errno. With unix.O_NOFOLLOW among flags, the last component may be a link.
func Open(root int, name string, flags uint64, way Way) (fd int, err error) {
	how := unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC | flags, Resolve: uint64(way)}
	fd, err = -1, unix.EAGAIN
	// EAGAIN: something was renamed or mounted meanwhile, so the kernel could not prove that ".."
	// stays in the root. A FUSE file system may return EINTR.
	for try := 0; try < 64 && (err == unix.EAGAIN || err == unix.EINTR); try++ {
		fd, err = unix.Openat2(root, name, &how)
	}
	return fd, err
}

// Stat is Open, and fstat(2) of what was opened.
func Stat(root int, name string, flags uint64, way Way) (fd int, st unix.Stat_t, err error) {
	if fd, err = Open(root, name, flags, way); err != nil {
		return -1, st, err
	}
	if err = unix.Fstat(fd, &st); err != nil {
		unix.Close(fd)
		return -1, unix.Stat_t{}, err
	}
	return fd, st, nil
}

// IsMountPoint reports whether name in the directory dir, or dir itself if name is "", is the root of
// a mount (kernel 5.8). It follows no link.
func IsMountPoint(dir int, name string) bool {
	var stx unix.Statx_t
	err := unix.Statx(dir, name, unix.AT_EMPTY_PATH|unix.AT_SYMLINK_NOFOLLOW|unix.AT_NO_AUTOMOUNT, unix.STATX_TYPE, &stx)
	return err == nil && stx.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0
}

// Path returns a path that leads to the file of a descriptor of this process.
func Path(fd int) string { return "/proc/self/fd/" + strconv.Itoa(fd) }

// Reader opens the regular file of a descriptor for reading. The error is ErrNotRegular, ErrTooLarge
// if it has more than maxSize bytes, or that of the file's host.
func Reader(fd int, st *unix.Stat_t, maxSize int64) (File, error) {
	switch {
	case st.Mode&unix.S_IFMT != unix.S_IFREG: // guard: image: only regular files
		return File{}, ErrNotRegular
	case st.Size > maxSize: // guard: records: size
		return File{}, fmt.Errorf("%w %d bytes", ErrTooLarge, maxSize)
	}
	at, err := rawio.Open(Path(fd), unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY)
	return File{at}, err
}

// File is an open regular file. An os.File would try to wait for it with epoll(7).
type File struct{ fd int }

// ReadAt implements io.ReaderAt.
func (f File) ReadAt(p []byte, off int64) (n int, err error) {
	for n < len(p) && err == nil {
		var m int
		m, err = unix.Pread(f.fd, p[n:], off+int64(n))
		switch {
		case errors.Is(err, unix.EINTR):
			err = nil
		case err == nil && m == 0:
			err = io.EOF
		}
		n += max(m, 0)
	}
	return n, err
}

// Close releases the file.
func (f File) Close() { unix.Close(f.fd) }

// Read returns the bytes that the file had when st was read, or fewer if it shrank. Errors are those
// of Reader.
func Read(fd int, st *unix.Stat_t, maxSize int64) ([]byte, error) {
	f, err := Reader(fd, st, maxSize)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return rawio.Read(f.fd, int(st.Size), int(st.Size))
}

// ReadDir returns the names in a directory, unsorted, or the first limit of them and ErrTooLarge.
func ReadDir(fd int, limit int) ([]string, error) {
	dir, err := unix.Openat(fd, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: Path(fd), Err: err}
	}
	f := os.NewFile(uintptr(dir), Path(fd))
	defer f.Close()
	names, err := f.Readdirnames(limit + 1)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	if len(names) > limit { // guard: image: directory size
		return names[:limit], fmt.Errorf("%w %d entries", ErrTooLarge, limit)
	}
	return names, err
}
