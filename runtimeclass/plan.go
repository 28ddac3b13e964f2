package runtimeclass

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"strings"

	"golang.org/x/sys/unix"
)

// BackupSuffix is appended to a file's name for its state before the installation.
const BackupSuffix = ".before-nvidia-shim"

// maxConfig bounds a configuration file, in bytes.
const maxConfig = 4 << 20

// maxLinks bounds a chain of symbolic links.
const maxLinks = 16

// Host is where files are.
type Host struct {
	// Root is put before every path: "/" or "", or the root of a tree to prepare.
	Root string
	// Daemon is the version of containerd; zero where it is not known.
	Daemon Version
}

// real is the path on this system.
func (h Host) real(path string) string { return filepath.Join("/", h.Root, path) }

// follow resolves path where it is itself a link, within the root, so that a linked
// configuration stays one.
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

// read returns nil without an error where there is no file.
func (h Host) read(path string) ([]byte, error) {
	f, err := os.OpenFile(h.real(path), os.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !st.Mode().IsRegular() || st.Size() > maxConfig {
		return nil, fmt.Errorf("%s is not a regular file of at most %d bytes", path, maxConfig)
	}
	var b bytes.Buffer
	if _, err := b.ReadFrom(f); err != nil {
		return nil, err
	}
	if b.Bytes() == nil {
		return []byte{}, nil
	}
	return b.Bytes(), nil
}

// Change is one configuration file. A nil text means that the file does not exist.
type Change struct {
	// Path is below the host's root.
	Path          string
	Before, After []byte
	// Backup says that Before is kept beside the file; BackupDone that such a copy
	// is not needed any more.
	Backup, BackupDone bool
}

func (c Change) changes() bool {
	return !bytes.Equal(c.Before, c.After) || (c.Before == nil) != (c.After == nil)
}

// Plan is what an installation or its removal would do.
type Plan struct {
	Host    Host
	Changes []Change
	// Notes are for the operator: what was chosen and why.
	Notes []string
	// Restart makes the daemon read its configuration; nothing of this package runs it.
	Restart Restart
}

// Restart is a systemctl command.
type Restart struct {
	// Verb is "restart" or "reload".
	Verb string
	// Units are those of which one is active on a node; none means nothing to restart.
	Units []string
}

func (r Restart) String() string {
	return "systemctl " + r.Verb + " " + strings.Join(r.Units, " or ")
}

// Changed tells whether a configuration file would change.
func (p *Plan) Changed() bool {
	for _, c := range p.Changes {
		if c.changes() {
			return true
		}
	}
	return false
}

// Changing are the paths of the files that would change.
func (p *Plan) Changing() []string {
	paths := []string{}
	for _, c := range p.Changes {
		if c.changes() {
			paths = append(paths, c.Path)
		}
	}
	return paths
}

// Diff shows the changes in unified form.
func (p *Plan) Diff() string {
	var b strings.Builder
	for _, c := range p.Changes {
		b.WriteString(unifiedDiff(c.Path, c.Before, c.After))
	}
	return b.String()
}

// Apply writes the files, each by an atomic rename and with its mode and owner kept.
// A file that is not any more as it was when the plan was made is left alone.
func (p *Plan) Apply() error {
	for _, c := range p.Changes {
		if err := p.Host.apply(c); err != nil {
			return fmt.Errorf("%s: %w", c.Path, err)
		}
	}
	return nil
}

func (h Host) apply(c Change) error {
	name := h.real(c.Path)
	if c.changes() {
		now, err := h.read(c.Path)
		if err != nil {
			return err
		}
		if !bytes.Equal(now, c.Before) || (now == nil) != (c.Before == nil) {
			return errors.New("has been changed meanwhile: run the command again")
		}
		if c.Backup && c.Before != nil {
			if err := replaceFile(name+BackupSuffix, name, c.Before, 0o600); err != nil {
				return fmt.Errorf("back-up: %w", err)
			}
		}
		if c.After == nil {
			if err := os.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		} else {
			if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
				return err
			}
			if err := replaceFile(name, name, c.After, 0o644); err != nil {
				return err
			}
		}
	}
	if c.BackupDone {
		if err := os.Remove(name + BackupSuffix); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// replaceFile writes a file under a temporary name and renames it over name. Owner,
// mode and SELinux label are those of the file like, or the given mode without one.
func replaceFile(name, like string, data []byte, mode os.FileMode) (err error) {
	tmp := filepath.Join(filepath.Dir(name), "."+filepath.Base(name)+"."+rand.Text()[:8])
	f, err := os.OpenFile(tmp, os.O_CREATE|os.O_EXCL|os.O_WRONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}
	defer func() {
		f.Close()
		if err != nil {
			_ = os.Remove(tmp)
		}
	}()
	if _, err := f.Write(data); err != nil {
		return err
	}
	var st unix.Stat_t
	switch err := unix.Stat(like, &st); {
	case err == nil:
		if err := f.Chown(int(st.Uid), int(st.Gid)); err != nil {
			return err
		}
		mode = os.FileMode(st.Mode & 0o777)
		label := make([]byte, 512)
		if n, err := unix.Getxattr(like, "security.selinux", label); err == nil {
			// Without SELinux the label has no meaning, and cannot always be set.
			_ = unix.Fsetxattr(int(f.Fd()), "security.selinux", label[:n], 0)
		}
	case !errors.Is(err, fs.ErrNotExist):
		return err
	}
	if err := f.Chmod(mode); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	return os.Rename(tmp, name)
}

// installed makes the change that an installation makes to a TOML file or template.
// stripped is before without an earlier installation.
func installed(path string, before, stripped, after []byte) Change {
	c := Change{Path: path, Before: before, After: after, Backup: before != nil && bytes.Equal(before, stripped)}
	// An operator may have added to the file since: nothing moves without need.
	if before != nil && !bytes.Equal(before, stripped) && after != nil {
		old, errOld := decode(before)
		fresh, errFresh := decode(after)
		if errOld == nil && errFresh == nil && reflect.DeepEqual(old, fresh) {
			c.After = before
		}
	}
	return c
}

// removed makes the change that takes our parts out of a TOML file or template.
func (h Host) removed(path string, before []byte) (Change, error) {
	c := Change{Path: path, Before: before, After: before}
	if before == nil {
		return c, nil
	}
	stripped, err := strip(before)
	if err != nil {
		return c, fmt.Errorf("%s: %w", path, err)
	}
	backup, err := h.read(path + BackupSuffix)
	if err != nil {
		return c, err
	}
	c.After = stripped
	if bytes.Equal(before, stripped) {
		return c, nil
	}
	if backup == nil && (len(stripped) == 0 || string(stripped) == baseTemplate) {
		// The file was made by the installation.
		c.After = nil
	}
	c.BackupDone = backup != nil && bytes.Equal(backup, stripped)
	return c, nil
}
