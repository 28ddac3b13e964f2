package view

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

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

// Load reads the value that Store kept under name into v. It says false where
// there is none, or where the file is not exactly what Store wrote (T62): the
// caller finds out anew.
func (s *State) Load(name string, v any) bool {
	data, err := os.ReadFile(filepath.Join(s.dir, name))
	if err != nil {
		return false
	}
	sum, body, ok := bytes.Cut(data, []byte("\n"))
	if !ok || string(sum) != checksum(body) {
		return false
	}
	return json.Unmarshal(body, v) == nil
}

// Store keeps v under name, by temporary file and rename.
func (s *State) Store(name string, v any) error {
	body, err := json.Marshal(v)
	if err != nil {
		return err
	}
	f, err := os.CreateTemp(s.dir, "."+name+".*")
	if err != nil {
		return err
	}
	_, err = f.Write(append([]byte(checksum(body)+"\n"), body...))
	err = errors.Join(err, f.Close())
	if err == nil {
		err = os.Rename(f.Name(), filepath.Join(s.dir, name))
	}
	if err != nil {
		_ = os.Remove(f.Name())
	}
	return err
}

func checksum(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}
