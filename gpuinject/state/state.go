package state

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/atomicfile"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/trusted"
)

// eventsName is the file of events, one line of JSON each. When it is full, it is renamed to
// olderEventsName.
const (
	eventsName      = "events.jsonl"
	olderEventsName = "events.jsonl.1"
)

// State is the state directory.
type State struct {
	dir      string
	readOnly bool
}

// Open makes dir (mode 0700) if it is missing and checks that only root can change it: owner, mode,
// not a symbolic link, and a parent directory in which others cannot rename it. A read-only State
// creates, keeps and locks nothing.
func Open(dir string, readOnly bool) (*State, error) {
	// The parent may be a link made by root, like /var/run.
	parent := filepath.Dir(dir)
	var above, st unix.Stat_t
	err := unix.Lstat(dir, &st)
	if errors.Is(err, fs.ErrNotExist) {
		if readOnly {
			return &State{dir, true}, nil
		}
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, fmt.Errorf("state directory: %w", err)
		}
		err = unix.Lstat(dir, &st)
	}
	if err != nil {
		return nil, fmt.Errorf("state directory: %w", &os.PathError{Op: "lstat", Path: dir, Err: err})
	}
	err = unix.Lstat(parent, &above)
	// guard: root's files: link to the parent
	if err == nil && above.Mode&unix.S_IFMT == unix.S_IFLNK && above.Uid == 0 {
		if parent, err = filepath.EvalSymlinks(parent); err != nil {
			return nil, fmt.Errorf("state directory: %w", err)
		}
		err = unix.Lstat(parent, &above)
	}
	if err != nil {
		return nil, fmt.Errorf("state directory: %w", &os.PathError{Op: "lstat", Path: parent, Err: err})
	}
	if err := trusted.Directory(&st); err != nil { // guard: root's files: state directory
		return nil, fmt.Errorf("state directory %s %w", dir, err)
	}
	if err := trusted.Parent(&above); err != nil { // guard: root's files: its parent
		return nil, fmt.Errorf("state directory %s: %s %w", dir, parent, err)
	}
	return &State{dir, readOnly}, nil
}

// Dir returns the path of the directory.
func (s *State) Dir() string { return s.dir }

// maxSize bounds a file of the state directory, in bytes.
const maxSize = 16 << 20

// Load reads into v the value that Store kept under name. It reports whether there is a value that
// v can hold, in a file that only root can change (T62). If not, the caller determines it again.
func (s *State) Load(name string, v any) bool {
	data, _, err := trusted.Read(filepath.Join(s.dir, name), maxSize) // guard: root's files: kept answers
	return err == nil && json.Unmarshal(data, v) == nil
}

// Store keeps v under name. A reader sees the old value or the new one.
func (s *State) Store(name string, v any) error {
	if s.readOnly {
		return nil
	}
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	s.removeTemporary(name)
	return atomicfile.Write(filepath.Join(s.dir, name), data, 0o600)
}

// Remove removes all kept values, and the directory unless something else is in it.
func (s *State) Remove() error {
	for _, pattern := range []string{"*.json", ".*.json.*", "*.lock", eventsName + "*"} {
		names, _ := filepath.Glob(filepath.Join(s.dir, pattern))
		for _, name := range names {
			if err := unix.Unlink(name); err != nil && !errors.Is(err, unix.EISDIR) && !errors.Is(err, unix.ENOENT) {
				return &os.PathError{Op: "remove", Path: name, Err: err}
			}
		}
	}
	if err := unix.Rmdir(s.dir); err != nil && !errors.Is(err, unix.ENOTEMPTY) && !errors.Is(err, unix.ENOENT) {
		return &os.PathError{Op: "remove", Path: s.dir, Err: err}
	}
	return nil
}

// removeTemporary removes the temporary files of an earlier Store that was killed.
func (s *State) removeTemporary(name string) {
	left, _ := filepath.Glob(filepath.Join(s.dir, "."+name+".*"))
	for _, file := range left {
		if info, err := os.Lstat(file); err == nil && time.Since(info.ModTime()) > time.Minute {
			_ = os.Remove(file)
		}
	}
}

// ErrBusy is the error of Lock if another process holds the lock.
var ErrBusy = errors.New("another process holds the lock")

// Lock takes the lock name of this host. If another process still holds it after limit, the error
// is ErrBusy. Closing the file, or the end of the process, releases the lock. For a read-only State
// the file is nil.
func (s *State) Lock(name string, limit time.Duration) (*os.File, error) {
	if s.readOnly {
		return nil, nil
	}
	f, err := os.OpenFile(filepath.Join(s.dir, name), os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, fmt.Errorf("state directory: %w", err)
	}
	// It polls, because flock(2) has no time limit.
	for start := time.Now(); ; time.Sleep(2 * time.Millisecond) {
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return f, nil
		}
		busy := errors.Is(err, unix.EWOULDBLOCK) || errors.Is(err, unix.EINTR)
		if busy && time.Since(start) <= limit {
			continue
		}
		f.Close()
		if busy {
			err = ErrBusy
		}
		return nil, err
	}
}
