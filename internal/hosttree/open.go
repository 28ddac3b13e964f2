package hosttree

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/openat"
)

// Tree is the file tree of a host.
type Tree struct {
	// Root is "/" or "", or the root of a tree to prepare.
	Root string
}

// Real returns the path on this system of a path below the root.
func (t Tree) Real(name string) string { return filepath.Join("/", t.Root, name) }

// OpenPath opens a file of the tree without an effect on it (O_PATH), and returns its fstat(2). A
// process of another root may change the tree meanwhile: links are followed inside the root only,
// and not in the last component.
func (t Tree) OpenPath(name string) (f *os.File, st unix.Stat_t, err error) {
	return t.open(name, unix.O_NOFOLLOW) // guard: records: no link
}

// open is OpenPath with other flags: without O_NOFOLLOW it follows a link in the last component.
func (t Tree) open(name string, flags uint64) (f *os.File, st unix.Stat_t, err error) {
	root, err := openat.Root(t.Real("/"))
	if err != nil {
		return nil, st, err
	}
	defer unix.Close(root)
	fd, st, err := openat.Stat(root, name, flags, openat.Links) // guard: records: inside the root
	if err != nil {
		return nil, st, &os.PathError{Op: "open", Path: t.Real(name), Err: err}
	}
	return os.NewFile(uintptr(fd), t.Real(name)), st, nil
}

// Path returns a path that leads to an open file, wherever it is now.
func Path(f *os.File) string { return openat.Path(int(f.Fd())) }

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
	data, err = read(f, &st, maxSize)
	return data, st, err
}

// read is openat.Read with the name of the file in its errors.
func read(f *os.File, st *unix.Stat_t, maxSize int64) ([]byte, error) {
	data, err := openat.Read(int(f.Fd()), st, maxSize)
	if errors.Is(err, openat.ErrNotRegular) || errors.Is(err, openat.ErrTooLarge) {
		return nil, fmt.Errorf("%s %w", f.Name(), err)
	}
	return data, named(err, f.Name())
}

// ReadDir returns at most limit names of a directory.
func (t Tree) ReadDir(name string, limit int) ([]string, error) {
	f, _, err := t.OpenPath(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	names, err := openat.ReadDir(int(f.Fd()), limit) // guard: records: number
	if errors.Is(err, openat.ErrTooLarge) {
		err = nil
	}
	return names, named(err, f.Name())
}
