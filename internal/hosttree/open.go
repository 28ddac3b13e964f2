package hosttree

import (
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// OpenPath opens a file of the tree without an effect on it (O_PATH), and returns its fstat(2). A
// process of another root may change the tree meanwhile: links are followed inside the root only,
// and not in the last component.
func (t Tree) OpenPath(name string) (f *os.File, st unix.Stat_t, err error) {
	root, err := unix.Open(t.Real("/"), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, st, &os.PathError{Op: "open", Path: t.Real("/"), Err: err}
	}
	defer unix.Close(root)
	how := unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_NOFOLLOW | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS,
	}
	fd, err := -1, error(unix.EAGAIN)
	// EAGAIN: something was renamed meanwhile, so the kernel could not prove that ".." stays in the
	// root (openat2(2)).
	for try := 0; try < 64 && (errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR)); try++ {
		fd, err = unix.Openat2(root, name, &how)
	}
	if err == nil {
		if err = unix.Fstat(fd, &st); err == nil {
			return os.NewFile(uintptr(fd), t.Real(name)), st, nil
		}
		unix.Close(fd)
	}
	return nil, st, &os.PathError{Op: "open", Path: t.Real(name), Err: err}
}

// Path returns a path that leads to an open file, wherever it is now.
func Path(f *os.File) string { return fmt.Sprintf("/proc/self/fd/%d", f.Fd()) }

// named returns an error about a path that Path returned, or one below it, with the name of the file.
func named(err error, name string) error {
	var path *os.PathError
	var link *os.LinkError
	switch {
	case errors.As(err, &path):
		return &os.PathError{Op: path.Op, Path: name, Err: path.Err}
	case errors.As(err, &link):
		return &os.PathError{Op: link.Op, Path: name, Err: link.Err}
	}
	return err
}

// ReadRegular reads a regular file of at most maxSize bytes, and returns its fstat(2). It opens no
// other file, so it waits for no FIFO.
func (t Tree) ReadRegular(name string, maxSize int64) (data []byte, st unix.Stat_t, err error) {
	f, st, err := t.OpenPath(name)
	if err != nil {
		return nil, st, err
	}
	defer f.Close()
	switch {
	case st.Mode&unix.S_IFMT != unix.S_IFREG:
		return nil, st, fmt.Errorf("%s is not a regular file", f.Name())
	case st.Size > maxSize:
		return nil, st, fmt.Errorf("%s is larger than %d bytes", f.Name(), maxSize)
	}
	r, err := os.OpenFile(Path(f), os.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, st, named(err, f.Name())
	}
	defer r.Close()
	data, err = io.ReadAll(io.LimitReader(r, maxSize))
	return data, st, named(err, f.Name())
}

// ReadDir returns at most limit names of a directory.
func (t Tree) ReadDir(name string, limit int) ([]string, error) {
	f, st, err := t.OpenPath(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return nil, fmt.Errorf("%s is not a directory", t.Real(name))
	}
	r, err := os.OpenFile(Path(f), os.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, named(err, f.Name())
	}
	defer r.Close()
	names, err := r.Readdirnames(limit)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return names, named(err, f.Name())
}
