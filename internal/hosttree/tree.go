package hosttree

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	continuity "github.com/containerd/continuity/fs"
	"golang.org/x/sys/unix"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/atomicfile"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/trusted"
)

// Follow resolves the links of a path within the root.
func (t Tree) Follow(name string) (string, error) {
	real, err := continuity.RootPath(t.Real("/"), name)
	if err != nil {
		return "", err
	}
	name, err = filepath.Rel(t.Real("/"), real)
	return filepath.Join("/", name), err
}

// Stat returns the result of stat(2) for a file.
func (t Tree) Stat(name string) (unix.Stat_t, error) {
	f, st, err := t.open(name, 0)
	f.Close()
	return st, err
}

// Exists reports whether there is a file or directory.
func (t Tree) Exists(name string) bool {
	_, err := t.Stat(name)
	return err == nil
}

// maxFile limits the size of a file in bytes; the largest is a program.
const maxFile = 1 << 30

// Read returns the content of a regular file, or nil if there is none.
func (t Tree) Read(name string) ([]byte, error) { return t.readChecked(name, nil) }

// ReadOwned is Read for a file that only root can change.
func (t Tree) ReadOwned(name string) ([]byte, error) { return t.readChecked(name, trusted.File) }

func (t Tree) readChecked(name string, check func(*unix.Stat_t) error) ([]byte, error) {
	f, st, err := t.open(name, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if check != nil {
		if err := check(&st); err != nil {
			return nil, fmt.Errorf("%s %w", name, err)
		}
	}
	return read(f, &st, maxFile)
}

// maxNames limits the entries of a directory in which names are looked for.
const maxNames = 1 << 16

// Glob returns the paths that match a pattern of path.Match.
func (t Tree) Glob(pattern string) ([]string, error) {
	found := []string{"/"}
	for part := range strings.FieldsFuncSeq(pattern, func(c rune) bool { return c == '/' }) {
		if _, err := path.Match(part, ""); err != nil {
			return nil, err
		}
		var next []string
		for _, dir := range found {
			names := []string{part}
			if strings.ContainsAny(part, `*?[\`) {
				names, _ = t.ReadDir(dir+"/.", maxNames) // none if there is no directory, which may be a link
				slices.Sort(names)
			}
			for _, name := range names {
				if ok, _ := path.Match(part, name); ok || part == name {
					next = append(next, path.Join(dir, name))
				}
			}
		}
		found = next
	}
	return slices.DeleteFunc(found, func(name string) bool {
		f, _, err := t.OpenPath(name)
		f.Close()
		return err != nil
	}), nil
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
func (t Tree) Remove(name string) { _ = t.remove(name) }

func (t Tree) remove(name string) error {
	dir, _, err := t.open(path.Dir(name), unix.O_DIRECTORY)
	if err != nil {
		return err
	}
	defer dir.Close()
	return named(os.Remove(below(dir, name)), t.Real(name))
}

// makeDirectory opens a directory, after making it and those above it if they are missing.
func (t Tree) makeDirectory(name string) (*os.File, error) {
	dir, _, err := t.open(name, unix.O_DIRECTORY)
	if !errors.Is(err, fs.ErrNotExist) || name == "/" {
		return dir, err
	}
	above, err := t.makeDirectory(path.Dir(name))
	if err != nil {
		return nil, err
	}
	defer above.Close()
	if err := os.Mkdir(below(above, name), 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, named(err, t.Real(name))
	}
	dir, _, err = t.open(name, unix.O_DIRECTORY)
	return dir, err
}

// below is a path to name in an open directory: it leads to no other one.
func below(dir *os.File, name string) string { return Path(dir) + "/" + path.Base(name) }
