package hosttree

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	continuity "github.com/containerd/continuity/fs"
	"golang.org/x/sys/unix"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/atomicfile"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/trusted"
)

// Tree is the file tree of a host.
type Tree struct {
	// Root is "/" or "", or the root of a tree to prepare.
	Root string
}

// Real returns the path on this system of a path below the root.
func (t Tree) Real(name string) string { return filepath.Join("/", t.Root, name) }

// Follow resolves the links of a path within the root.
func (t Tree) Follow(name string) (string, error) {
	real, err := continuity.RootPath(t.Real("/"), name)
	if err != nil {
		return "", err
	}
	name, err = filepath.Rel(t.Real("/"), real)
	return filepath.Join("/", name), err
}

// open opens the tree. The returned name is relative to the tree and has its links resolved.
// os.Root refuses links that are created in the meantime and lead out of the tree.
func (t Tree) open(name string) (*os.Root, string, error) {
	name, err := t.Follow(name)
	if err != nil {
		return nil, "", err
	}
	root, err := os.OpenRoot(t.Real("/"))
	return root, cmp.Or(strings.TrimPrefix(name, "/"), "."), err
}

// Stat returns the result of stat(2) for a file.
func (t Tree) Stat(name string) (os.FileInfo, error) {
	root, name, err := t.open(name)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	return root.Stat(name)
}

// Exists reports whether there is a file or directory.
func (t Tree) Exists(name string) bool {
	_, err := t.Stat(name)
	return err == nil
}

// Read returns the content of a regular file, or nil if there is none.
func (t Tree) Read(name string) ([]byte, error) { return t.readChecked(name, nil) }

// ReadOwned is Read for a file that only root can change.
func (t Tree) ReadOwned(name string) ([]byte, error) { return t.readChecked(name, trusted.File) }

func (t Tree) readChecked(name string, check func(*unix.Stat_t) error) ([]byte, error) {
	root, real, err := t.open(name)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	// A FIFO must not block.
	f, err := root.OpenFile(real, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var st unix.Stat_t
	err = unix.Fstat(int(f.Fd()), &st)
	if err == nil && st.Mode&unix.S_IFMT != unix.S_IFREG {
		err = errors.New("is not a regular file")
	}
	if err == nil && check != nil {
		err = check(&st)
	}
	if err != nil {
		return nil, fmt.Errorf("%s %w", name, err)
	}
	text, err := io.ReadAll(f)
	return text, err
}

// Glob returns the paths that match a pattern.
func (t Tree) Glob(pattern string) ([]string, error) {
	fixed := pattern
	for strings.ContainsAny(fixed, "*?[\\") {
		fixed = path.Dir(fixed)
	}
	root, real, err := t.open(fixed)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	names, err := fs.Glob(root.FS(), path.Join(real, strings.TrimPrefix(pattern, fixed)))
	for i, name := range names {
		names[i] = path.Join(fixed, strings.TrimPrefix("/"+name, path.Join("/", real)))
	}
	return names, err
}

// RemoveTemporary removes from a directory the temporary files of processes that were killed while
// they were writing.
func (t Tree) RemoveTemporary(dir string) {
	left, _ := t.Glob(path.Join(dir, ".*"+atomicfile.Temporary+"*"))
	for _, name := range left {
		t.Remove(name)
	}
}

// Remove removes a file or an empty directory, if there is one.
func (t Tree) Remove(name string) {
	if root, name, err := t.open(name); err == nil {
		_ = root.Remove(name)
		root.Close()
	}
}
