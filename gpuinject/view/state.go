package view

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// State is the verified state directory of the shim.
type State struct {
	dir string
}

// OpenState makes dir (mode 0700) where it is missing and verifies that only root
// can change it: owner, mode, no symbolic link, and a parent that others cannot
// rename it in.
func OpenState(dir string) (*State, error) {
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		if !errors.Is(err, os.ErrNotExist) {
			return nil, fmt.Errorf("state directory: %w", err)
		}
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, fmt.Errorf("state directory: %w", err)
		}
	}
	parent := filepath.Dir(dir)
	// The parent may be reached through a link, as /var/run is, if root made it.
	var st unix.Stat_t
	if err := unix.Lstat(parent, &st); err == nil && st.Mode&unix.S_IFMT == unix.S_IFLNK && st.Uid == 0 {
		if parent, err = filepath.EvalSymlinks(parent); err != nil {
			return nil, fmt.Errorf("state directory: %w", err)
		}
	}
	for _, c := range []struct {
		name   string
		sticky bool
	}{{dir, false}, {parent, true}} {
		var st unix.Stat_t
		if err := unix.Lstat(c.name, &st); err != nil {
			return nil, fmt.Errorf("state directory: %w", &os.PathError{Op: "lstat", Path: c.name, Err: err})
		}
		switch {
		case !c.sticky && st.Mode&unix.S_IFMT != unix.S_IFDIR:
			return nil, fmt.Errorf("state directory %s is not a directory", c.name)
		case st.Uid != uint32(os.Geteuid()) && st.Uid != 0:
			return nil, fmt.Errorf("state directory %s: %s is owned by uid %d: chown it to root", dir, c.name, st.Uid)
		case st.Mode&0o022 != 0 && !(c.sticky && st.Mode&unix.S_ISVTX != 0):
			return nil, fmt.Errorf("state directory %s: %s can be written by others than root (mode %04o): chmod go-w it", dir, c.name, st.Mode&0o7777)
		}
	}
	return &State{dir: dir}, nil
}

// maxState bounds a file of the state directory, in bytes.
const maxState = 16 << 20

// Load reads the value that Store kept under name into v. It says false where
// there is none, or where the file is not exactly what Store wrote, or not by root
// (T62): the caller finds out anew.
func (s *State) Load(name string, v any) bool {
	body, ok := s.Read(name)
	return ok && json.Unmarshal(body, v) == nil
}

// storeTimeout is how long a value that another process stores is waited for. That takes
// less than a millisecond; a shim that was stopped in the middle must not stop all.
const storeTimeout = 500 * time.Millisecond

// Read is Load of the value as JSON. Where there is none it looks again when nobody
// stores one any more.
func (s *State) Read(name string) (body []byte, ok bool) {
	if body, ok = s.read(name); ok {
		return body, true
	}
	lock, err := s.exclusive()
	if err != nil {
		return nil, false
	}
	defer lock.Close()
	return s.read(name)
}

// exclusive takes the lock of those who store values, on the directory itself.
func (s *State) exclusive() (*os.File, error) {
	f, err := os.Open(s.dir)
	if err != nil {
		return nil, err
	}
	if err := flock(f, storeTimeout); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

func (s *State) read(name string) (body []byte, ok bool) {
	f, err := os.OpenFile(filepath.Join(s.dir, name), os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, false
	}
	defer f.Close()
	var st unix.Stat_t
	if unix.Fstat(int(f.Fd()), &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFREG || st.Size > maxState ||
		st.Uid != uint32(os.Geteuid()) && st.Uid != 0 || st.Mode&0o022 != 0 {
		return nil, false
	}
	data := make([]byte, st.Size)
	if _, err := io.ReadFull(f, data); err != nil {
		return nil, false
	}
	sum, body, ok := bytes.Cut(data, []byte("\n"))
	if !ok || string(sum) != checksum(body) {
		return nil, false
	}
	return body, true
}

// Store keeps v under name. It goes without a temporary file, which a shim that is
// killed would leave behind: the old file is removed and a new one written, while who
// finds neither waits for the lock. What a killed shim has written lacks its checksum.
func (s *State) Store(name string, v any) error {
	body, err := json.Marshal(v)
	if err != nil {
		return err
	}
	lock, err := s.exclusive()
	if errors.Is(err, ErrBusy) {
		return nil // the next one finds out anew
	}
	if err != nil {
		return err
	}
	defer lock.Close()
	full := filepath.Join(s.dir, name)
	if err := os.Remove(full); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	f, err := os.OpenFile(full, os.O_WRONLY|os.O_CREATE|os.O_EXCL|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(append([]byte(checksum(body)+"\n"), body...))
	if err = errors.Join(err, f.Close()); err != nil {
		_ = os.Remove(full)
	}
	return err
}

func checksum(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// ErrBusy says that a lock is still another's at the end of the time.
var ErrBusy = errors.New("somebody else has it")

// Lock takes the lock name of this host, waiting as long as limit; then it returns
// ErrBusy. The lock goes with the returned file, or with the process.
func (s *State) Lock(name string, limit time.Duration) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(s.dir, name), os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, fmt.Errorf("state directory: %w", err)
	}
	if err := flock(f, limit); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// flock takes the lock on f. It asks again and again: a process that was stopped
// while it held the lock must not stop all others.
func flock(f *os.File, limit time.Duration) error {
	for start := time.Now(); ; time.Sleep(2 * time.Millisecond) {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil || !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			return err
		}
		if time.Since(start) > limit {
			return ErrBusy
		}
	}
}
