package hosttree

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/aymanbagabas/go-udiff"
	"golang.org/x/sys/unix"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/atomicfile"
)

// Kind is the kind of a changed file.
type Kind string

// The kinds of files.
const (
	DaemonConfig Kind = "configuration" // the daemon has to read it again
	Original     Kind = "original"      // the daemon's configuration before the installation
	Program      Kind = "program"       // executable; replaced even if it changed in the meantime
	OtherFile    Kind = "file"          // the unit, the shim's configuration
	Generated    Kind = "generated"     // read only by programs: its diff tells people nothing
	Link         Kind = "link"          // a symbolic link; its text is its target
	Record       Kind = "record"        // the list of what was installed
	Directory    Kind = "directory"     // created by an installation
)

// Change is one file before and after. A nil text means that the file does not exist.
type Change struct {
	Kind Kind
	// Path is below the host's root.
	Path          string
	Before, After []byte
}

// Change returns the change of a file from its present content. A link to the file stays a link.
func (t Tree) Change(kind Kind, name string, after []byte) (Change, error) {
	c := Change{Kind: kind, Path: name, After: after}
	var err error
	if kind != Link {
		if c.Path, err = t.Follow(name); err == nil {
			c.Before, err = t.Read(name)
		}
		return c, err
	}
	f, st, err := t.OpenPath(name)
	if errors.Is(err, fs.ErrNotExist) {
		return c, nil
	}
	if err != nil {
		return c, err
	}
	defer f.Close()
	if st.Mode&unix.S_IFMT == unix.S_IFLNK {
		buf := make([]byte, unix.PathMax)
		n, err := unix.Readlinkat(int(f.Fd()), "", buf)
		if err != nil {
			return c, &os.PathError{Op: "readlink", Path: f.Name(), Err: err}
		}
		c.Before = buf[:n]
	}
	return c, nil
}

// Differs reports whether the change changes anything. An empty file differs from a missing one.
func (c Change) Differs() bool { return !equal(c.Before, c.After) }

func equal(a, b []byte) bool { return bytes.Equal(a, b) && (a == nil) == (b == nil) }

// Diff returns the difference in the format of patch(1).
func (c Change) Diff() string {
	name := func(text []byte) string {
		if text == nil {
			return "/dev/null"
		}
		return c.Path
	}
	return udiff.Unified(name(c.Before), name(c.After), string(c.Before), string(c.After))
}

// BackupSuffix is the suffix of the backup of a file from before the installation.
const BackupSuffix = ".before-nvidia-shim"

// ProgramMode is the mode of a Program.
const ProgramMode = 0o755

// Apply makes a change by an atomic rename. A file that changed in the meantime is left alone,
// unless a Program replaces it.
func (t Tree) Apply(c Change) error {
	if !c.Differs() {
		return nil
	}
	now, err := t.Change(c.Kind, c.Path, nil)
	if err != nil {
		return err
	}
	replaces := c.Kind == Program && c.After != nil
	if !replaces && equal(now.Before, c.After) {
		return nil
	}
	if !replaces && !equal(now.Before, c.Before) {
		return errors.New("was changed by another process: run the command again")
	}
	if c.After == nil {
		err := t.remove(c.Path)
		if c.Kind == Record { // the record does not list its own directory
			t.Remove(filepath.Dir(c.Path))
		}
		return err
	}
	dir, err := t.makeDirectory(filepath.Dir(c.Path))
	if err != nil {
		return err
	}
	defer dir.Close()
	return named(write(dir, c), t.Real(c.Path))
}

func write(dir *os.File, c Change) error {
	name := below(dir, c.Path)
	switch c.Kind {
	case Link:
		if c.Before != nil {
			_ = os.Remove(name) // Symlink does not replace a file
		}
		return os.Symlink(string(c.After), name)
	case Program:
		// A running shim keeps its file, and no process can start a half-written one.
		return atomicfile.Write(name, c.After, ProgramMode)
	case Record:
		return atomicfile.Write(name, c.After, 0o600)
	case Original:
		return atomicfile.WriteLike(name, strings.TrimSuffix(name, BackupSuffix), c.After, 0o600)
	}
	return atomicfile.WriteLike(name, name, c.After, 0o644)
}
