package runtimeclass

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/aymanbagabas/go-udiff"
	continuity "github.com/containerd/continuity/fs"
	"golang.org/x/sys/unix"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/atomicfile"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/trusted"
)

// Host is a tree of files and the daemon that reads them.
type Host struct {
	// Root is put before every path: "/" or "", or the root of a tree to prepare.
	Root string
	// Daemon is the version of containerd; zero if it is not known.
	Daemon Version
}

func (h Host) real(path string) string { return filepath.Join("/", h.Root, path) }

// follow resolves the links of a path within the root.
func (h Host) follow(name string) (string, error) {
	real, err := continuity.RootPath(h.real("/"), name)
	if err != nil {
		return "", err
	}
	name, err = filepath.Rel(h.real("/"), real)
	return filepath.Join("/", name), err
}

// read returns the content of a file, or nil if there is none.
func (h Host) read(path string) ([]byte, error) {
	text, err := os.ReadFile(h.real(path))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return text, err
}

// readOwned is read for a file that only root can change.
func (h Host) readOwned(path string) ([]byte, error) {
	text, _, err := trusted.Read(h.real(path), maxRecord)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return text, err
}

// FileKind says what a changed file is.
type FileKind string

// The kinds of files.
const (
	DaemonConfig FileKind = "configuration" // the daemon has to read it again
	Original     FileKind = "original"      // the daemon's configuration before the installation
	Program      FileKind = "program"       // one of Programs
	OtherFile    FileKind = "file"          // the unit, the shim's configuration
	Link         FileKind = "link"          // a symbolic link; its text is where it leads
	Record       FileKind = "record"        // the list of what was installed
)

// Change is one file before and after. A nil text means that the file does not exist.
type Change struct {
	Kind FileKind
	// Path is below the host's root.
	Path          string
	Before, After []byte
}

// change returns the change of a file from what it is now.
func (h Host) change(kind FileKind, path string, after []byte) (Change, error) {
	c := Change{Kind: kind, Path: path, After: after}
	var err error
	if kind != Link {
		c.Before, err = h.read(path)
		return c, err
	}
	to, err := os.Readlink(h.real(path))
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.EINVAL):
		return c, nil
	case err == nil:
		c.Before = []byte(to)
	}
	return c, err
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
	// Programs are removed after the restart, by RemovePrograms: until then the daemon may start
	// the shim.
	Programs []Change

	// configFile is the configuration with the handler. kept is the record of an uninstallation
	// while the programs are there.
	configFile string
	options    Options
	kept       []placed
}

func (p *Plan) note(format string, args ...any) {
	p.Notes = append(p.Notes, fmt.Sprintf(format, args...))
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

// Written and Removed return the paths of all files that the plan writes and removes.
func (p Plan) Written() []string { return p.paths(false) }

// Removed is described at Written.
func (p Plan) Removed() []string { return p.paths(true) }

func (p Plan) paths(removed bool) []string {
	paths := []string{}
	for _, c := range slices.Concat(p.Changes, p.Programs) {
		if !equalText(c.Before, c.After) && (c.After == nil) == removed {
			paths = append(paths, c.Path)
		}
	}
	return paths
}

// Diff shows the changes of configurations and other text files as patch(1) reads them.
func (p Plan) Diff() string {
	var b strings.Builder
	for _, c := range p.Changes {
		name := func(text []byte) string {
			if text == nil {
				return "/dev/null"
			}
			return c.Path
		}
		if c.Kind == DaemonConfig || c.Kind == OtherFile {
			b.WriteString(udiff.Unified(name(c.Before), name(c.After), string(c.Before), string(c.After)))
		}
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
	now, err := h.change(c.Kind, c.Path, nil)
	if err != nil {
		return err
	}
	if (c.Kind != Program || c.After == nil) && !equalText(now.Before, c.Before) {
		return errors.New("has been changed meanwhile: run the command again")
	}
	if c.After == nil {
		err := os.Remove(name)
		if c.Kind == Record {
			// Others may have files there.
			_ = os.Remove(filepath.Dir(name))
		}
		return err
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
	case Record:
		return atomicfile.Write(name, c.After, 0o600)
	case Original:
		return atomicfile.WriteLike(name, strings.TrimSuffix(name, BackupSuffix), c.After, 0o600)
	}
	return atomicfile.WriteLike(name, name, c.After, 0o644)
}
