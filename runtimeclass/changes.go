package runtimeclass

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
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
	// Root is "/" or "", or the root of a tree to prepare. No path leads out of it, and nothing in
	// the tree is executed.
	Root string
	// Daemon is the version of containerd; zero if it is not known.
	Daemon Version
}

func (h Host) real(name string) string { return filepath.Join("/", h.Root, name) }

// follow resolves the links of a path within the root.
func (h Host) follow(name string) (string, error) {
	real, err := continuity.RootPath(h.real("/"), name)
	if err != nil {
		return "", err
	}
	name, err = filepath.Rel(h.real("/"), real)
	return filepath.Join("/", name), err
}

// open opens the tree. The name that it returns is without links and relative to the tree, which
// refuses links that others make meanwhile and that lead out of it.
func (h Host) open(name string) (*os.Root, string, error) {
	name, err := h.follow(name)
	if err != nil {
		return nil, "", err
	}
	root, err := os.OpenRoot(h.real("/"))
	return root, cmp.Or(strings.TrimPrefix(name, "/"), "."), err
}

// stat returns the result of stat(2) for a file.
func (h Host) stat(name string) (os.FileInfo, error) {
	root, name, err := h.open(name)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	return root.Stat(name)
}

// Exists reports whether there is a file or directory.
func (h Host) Exists(name string) bool {
	_, err := h.stat(name)
	return err == nil
}

// Read returns the content of a regular file, or nil if there is none.
func (h Host) Read(name string) ([]byte, error) { return h.readChecked(name, nil) }

// readOwned is Read for a file that only root can change.
func (h Host) readOwned(name string) ([]byte, error) { return h.readChecked(name, trusted.File) }

func (h Host) readChecked(name string, check func(*unix.Stat_t) error) ([]byte, error) {
	root, real, err := h.open(name)
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

// glob returns the paths that match a pattern.
func (h Host) glob(pattern string) ([]string, error) {
	fixed := pattern
	for strings.ContainsAny(fixed, "*?[\\") {
		fixed = path.Dir(fixed)
	}
	root, real, err := h.open(fixed)
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

// FileKind says what a changed file is.
type FileKind string

// The kinds of files.
const (
	DaemonConfig FileKind = "configuration" // the daemon has to read it again
	Original     FileKind = "original"      // the daemon's configuration before the installation
	Program      FileKind = "program"       // one of Programs
	OtherFile    FileKind = "file"          // the unit, the shim's configuration
	Generated    FileKind = "generated"     // for programs to read: a difference tells people nothing
	Link         FileKind = "link"          // a symbolic link; its text is where it leads
	Record       FileKind = "record"        // the list of what was installed
	Directory    FileKind = "directory"     // one that an installation made
)

// Change is one file before and after. A nil text means that the file does not exist.
type Change struct {
	Kind FileKind
	// Path is below the host's root.
	Path          string
	Before, After []byte
}

// change returns the change of a file from what it is now. A link to it stays one.
func (h Host) change(kind FileKind, name string, after []byte) (Change, error) {
	c := Change{Kind: kind, Path: name, After: after}
	var err error
	if kind != Link {
		if c.Path, err = h.follow(name); err == nil {
			c.Before, err = h.Read(name)
		}
		return c, err
	}
	root, dir, err := h.open(filepath.Dir(name))
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
	// Programs are removed after the restart, by RemovePrograms, and then their lines of the record:
	// until then the daemon may start the shim.
	Programs []Change
	// State is the shim's state directory if it goes with this registration, the last one. The
	// caller removes it after the programs.
	State string

	// configFile is the configuration with the handler.
	configFile string
	// dirs are those in which an installation writes, made those that installations made.
	dirs, made []string
}

func (p *Plan) note(format string, args ...any) {
	p.Notes = append(p.Notes, fmt.Sprintf(format, args...))
}

// Changed reports whether the daemon's configuration changes, or what else it reads when it starts.
func (p Plan) Changed() bool {
	return len(p.Changing(DaemonConfig)) > 0 || slices.Contains(p.Changing(Link), cdiHookLink)
}

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
	all := slices.Concat(p.Changes, p.Programs)
	for i, c := range all {
		again := slices.ContainsFunc(all[i+1:], func(later Change) bool { return later.Path == c.Path })
		if !again && !equalText(c.Before, c.After) && (c.After == nil) == removed {
			paths = append(paths, c.Path)
		}
	}
	if removed && p.State != "" {
		paths = append(paths, p.State)
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
	for _, dir := range p.dirs {
		p.Host.RemoveTemporary(dir)
	}
	for _, c := range p.Changes {
		if err := p.Host.apply(c); err != nil {
			return fmt.Errorf("%s: %w", c.Path, err)
		}
	}
	p.removeDirectories()
	return nil
}

// removeDirectories removes those that installations made and that are empty.
func (p Plan) removeDirectories() {
	slices.Sort(p.made)
	for _, name := range slices.Backward(p.made) {
		if root, name, err := p.Host.open(name); err == nil {
			_ = root.Remove(name)
			root.Close()
		}
	}
}

// Undo returns the plan that brings the files of this one back to what they are now. Programs that
// are not there now are removed after the restart, by RemovePrograms.
func (p Plan) Undo() (Plan, error) {
	undo := Plan{Host: p.Host, Restart: p.Restart, made: p.made}
	undo.Restart.Verb = "restart" // a reload of Docker takes no runtime away
	var record []Change
	for _, c := range slices.Backward(p.Changes) {
		now, err := p.Host.change(c.Kind, c.Path, nil)
		if err != nil {
			return undo, err
		}
		back := Change{c.Kind, c.Path, c.After, now.Before}
		switch {
		case back.After == nil && c.Kind == Program:
			undo.Programs = append(undo.Programs, back)
		case back.After == nil && c.Kind == Record:
			record = append(record, back)
		default:
			undo.Changes = append(undo.Changes, back)
		}
	}
	undo.Programs = append(undo.Programs, record...) // it knows the programs until they are gone
	return undo, nil
}

// RemoveTemporary removes from a directory the files of processes that were killed while they wrote.
func (h Host) RemoveTemporary(dir string) {
	left, _ := h.glob(path.Join(dir, ".*"+atomicfile.Temporary+"*"))
	for _, name := range left {
		if root, name, err := h.open(name); err == nil {
			_ = root.Remove(name)
			root.Close()
		}
	}
}

func (h Host) apply(c Change) error {
	if equalText(c.Before, c.After) {
		return nil
	}
	now, err := h.change(c.Kind, c.Path, nil)
	if err != nil {
		return err
	}
	replaces := c.Kind == Program && c.After != nil
	if !replaces && equalText(now.Before, c.After) {
		return nil
	}
	if !replaces && !equalText(now.Before, c.Before) {
		return errors.New("has been changed meanwhile: run the command again")
	}
	root, dir, err := h.open(filepath.Dir(c.Path))
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
	// A directory by its descriptor stays the same one.
	name := fmt.Sprintf("/proc/self/fd/%d/%s", opened.Fd(), filepath.Base(c.Path))
	switch c.Kind {
	case Link:
		if c.Before != nil {
			_ = os.Remove(name) // Symlink replaces nothing
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
