package runtimeclass

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"strings"

	"github.com/aymanbagabas/go-udiff"
	"golang.org/x/sys/unix"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/atomicfile"
)

// BackupSuffix is appended to a configuration file's name for its state before the installation.
const BackupSuffix = ".before-nvidia-shim"

// maxLinks bounds a chain of symbolic links.
const maxLinks = 16

// Host is a tree of files and the daemon that reads them.
type Host struct {
	// Root is put before every path: "/" or "", or the root of a tree to prepare.
	Root string
	// Daemon is the version of containerd; zero if it is not known.
	Daemon Version
}

// real is the path on this system.
func (h Host) real(path string) string { return filepath.Join("/", h.Root, path) }

// follow resolves path within the root if it is a link, so that a linked configuration stays one.
func (h Host) follow(path string) (string, error) {
	for range maxLinks {
		to, err := os.Readlink(h.real(path))
		if errors.Is(err, unix.EINVAL) || errors.Is(err, fs.ErrNotExist) {
			return path, nil
		}
		if err != nil {
			return "", err
		}
		if !filepath.IsAbs(to) {
			to = filepath.Join(filepath.Dir(path), to)
		}
		path = filepath.Clean(to)
	}
	return "", fmt.Errorf("%s: too many links", path)
}

// read returns the content of a file, or nil if there is none.
func (h Host) read(path string) ([]byte, error) {
	text, err := os.ReadFile(h.real(path))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return text, err
}

// FileKind says what a changed file is.
type FileKind int

// The kinds of files.
const (
	DaemonConfig FileKind = iota // the daemon has to read it again
	Original                     // the daemon's configuration before the installation
	Program                      // one of Programs
	OtherFile                    // the unit, the shim's configuration
	Link                         // a symbolic link; its text is where it leads
)

// Change is one file before and after. A nil text means that the file does not exist.
type Change struct {
	Kind FileKind
	// Path is below the host's root.
	Path          string
	Before, After []byte
}

// equalText tells an empty file from none.
func equalText(a, b []byte) bool { return bytes.Equal(a, b) && (a == nil) == (b == nil) }

// Plan is what an installation or its removal changes.
type Plan struct {
	Host Host
	// Handler is the name of the installed handler.
	Handler string
	// Changes are in the order in which they are made.
	Changes []Change
	// Notes say what was chosen and why, for the operator.
	Notes []string
	// Restart makes the daemon read its configuration.
	Restart Restart
}

// Changed reports whether the daemon's configuration changes.
func (p Plan) Changed() bool { return len(p.Changing(DaemonConfig)) > 0 }

// Changing returns the paths of the files of a kind that change.
func (p Plan) Changing(kind FileKind) []string {
	paths := []string{}
	for _, c := range p.Changes {
		if c.Kind == kind && !equalText(c.Before, c.After) {
			paths = append(paths, c.Path)
		}
	}
	return paths
}

// Diff shows the changes of configurations and other text files as patch(1) reads them.
func (p Plan) Diff() string {
	var b strings.Builder
	for _, c := range p.Changes {
		if c.Kind != DaemonConfig && c.Kind != OtherFile {
			continue
		}
		from, to := c.Path, c.Path
		if c.Before == nil {
			from = "/dev/null"
		}
		if c.After == nil {
			to = "/dev/null"
		}
		b.WriteString(udiff.Unified(from, to, string(c.Before), string(c.After)))
	}
	return b.String()
}

// Apply makes the changes, each by an atomic rename. A file that changed since the plan was made is
// left alone.
func (p Plan) Apply() error {
	for _, c := range p.Changes {
		if err := p.Host.apply(c); err != nil {
			return fmt.Errorf("%s: %w", c.Path, err)
		}
	}
	return nil
}

func (h Host) apply(c Change) error {
	name := h.real(c.Path)
	if equalText(c.Before, c.After) {
		return nil
	}
	read := h.read
	if c.Kind == Link {
		read = h.readLink
	}
	now, err := read(c.Path)
	if err != nil {
		return err
	}
	if c.Kind != Program && !equalText(now, c.Before) {
		return errors.New("has been changed meanwhile: run the command again")
	}
	if c.After == nil {
		return os.Remove(name)
	}
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return err
	}
	switch c.Kind {
	case Link:
		if err := os.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return os.Symlink(string(c.After), name)
	case Program:
		// A shim that runs keeps its file, and no process can start half of one.
		return atomicfile.Write(name, c.After, programMode)
	case Original:
		return atomicfile.WriteLike(name, strings.TrimSuffix(name, BackupSuffix), c.After, 0o600)
	}
	return atomicfile.WriteLike(name, name, c.After, 0o644)
}

// readLink returns where a link leads, or nil if path is no link.
func (h Host) readLink(path string) ([]byte, error) {
	to, err := os.Readlink(h.real(path))
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.EINVAL) {
		return nil, nil
	}
	return []byte(to), err
}

// readStripped reads a file, and takes our lines out of a copy.
func (h Host) readStripped(name string) (text, stripped []byte, err error) {
	if text, err = h.read(name); err != nil {
		return nil, nil, err
	}
	if stripped, err = strip(text); err != nil {
		return nil, nil, fmt.Errorf("%s: %w", name, err)
	}
	return text, stripped, nil
}

// edited returns the changes that an installation makes to a configuration: the file, and a copy
// of the original. stripped is before without an earlier installation.
func (h Host) edited(path string, before, stripped, after []byte) ([]Change, error) {
	if before != nil && bytes.Equal(before, stripped) {
		backup, err := h.read(path + BackupSuffix)
		return []Change{{Original, path + BackupSuffix, backup, before}, {DaemonConfig, path, before, after}}, err
	}
	// The operator may have added lines behind ours: nothing moves without need.
	if before != nil && sameContent(before, after) {
		after = before
	}
	return []Change{{DaemonConfig, path, before, after}}, nil
}

// sameContent reports whether two files of TOML or JSON say the same.
func sameContent(a, b []byte) bool {
	for _, decode := range []func([]byte) (map[string]any, error){decode, decodeJSON} {
		va, errA := decode(a)
		vb, errB := decode(b)
		if errA == nil && errB == nil {
			return reflect.DeepEqual(va, vb)
		}
	}
	return false
}

// restored returns the changes that take our lines out of all files but one, and notes about them.
func (h Host) restored(names []string, but string) (changes []Change, notes []string, err error) {
	for _, name := range names {
		if name == but {
			continue
		}
		text, stripped, err := h.readStripped(name)
		if err != nil {
			return nil, nil, err
		}
		c, note, err := h.restoredFile(name, text, stripped)
		if err != nil {
			return nil, nil, err
		}
		changes, notes = append(changes, c...), append(notes, note...)
	}
	return changes, notes, nil
}

// restoredFile returns the changes that remove an installation from a configuration, and a note.
// stripped is before without the installation.
func (h Host) restoredFile(path string, before, stripped []byte) ([]Change, []string, error) {
	if bytes.Equal(before, stripped) {
		return nil, nil, nil
	}
	backup, err := h.read(path + BackupSuffix)
	if err != nil {
		return nil, nil, err
	}
	change := Change{DaemonConfig, path, before, stripped}
	switch {
	// The installation may have ended the last line.
	case backup != nil && bytes.Equal(withLineEnd(backup), withLineEnd(stripped)):
		change.After = backup
		return []Change{change, {Original, path + BackupSuffix, backup, nil}},
			[]string{path + " gets exactly the bytes that it had before the installation"}, nil
	case backup != nil:
		return []Change{change}, []string{fmt.Sprintf("%s has been changed since the installation: only our lines are removed, and %s%s stays",
			path, filepath.Base(path), BackupSuffix)}, nil
	case isEmpty(stripped):
		change.After = nil
		return []Change{change}, []string{path + " is removed: it was made by the installation"}, nil
	}
	return []Change{change}, nil, nil
}

// isEmpty reports whether a configuration says nothing, as one that an installation made.
func isEmpty(text []byte) bool {
	text = bytes.TrimSpace(text)
	return len(text) == 0 || string(text) == "{}" || string(text) == strings.TrimSpace(baseTemplate)
}
