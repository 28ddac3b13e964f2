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
	root, dir, err := t.open(filepath.Dir(name))
	if err != nil {
		return c, err
	}
	defer root.Close()
	to, err := root.Readlink(filepath.Join(dir, filepath.Base(name)))
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.EINVAL):
		return c, nil
	case err == nil:
		c.Before = []byte(to)
	}
	return c, err
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
	root, dir, err := t.open(filepath.Dir(c.Path))
	if err != nil {
		return err
	}
	defer root.Close()
	if c.After == nil {
		err := root.Remove(filepath.Join(dir, filepath.Base(c.Path)))
		if c.Kind == Record { // the record does not list its own directory
			_ = root.Remove(dir)
		}
		return err
	}
	if err := root.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	opened, err := root.Open(dir)
	if err != nil {
		return err
	}
	defer opened.Close()
	return named(write(opened, c), t.Real(c.Path))
}

// write makes a change in its directory.
func write(dir *os.File, c Change) error {
	// A path through the descriptor always leads to the same directory.
	name := Path(dir) + "/" + filepath.Base(c.Path)
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
