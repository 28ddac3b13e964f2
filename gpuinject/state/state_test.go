package state

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testtree"
)

var check = testtree.Check

func open(t *testing.T) *State {
	t.Helper()
	s, err := Open(filepath.Join(t.TempDir(), "state"), false)
	check(t, err)
	return s
}

func TestADirectoryThatOthersCanChangeIsRefused(t *testing.T) {
	for _, tc := range []struct {
		name, says string
		make       func(parent, dir string) error
	}{
		{"owned by another user", "uid 1000", func(_, dir string) error { return errors.Join(os.Mkdir(dir, 0o700), os.Chown(dir, 1000, 1000)) }},
		{"writable by everyone", "chmod", func(_, dir string) error { return errors.Join(os.Mkdir(dir, 0o700), os.Chmod(dir, 0o777)) }},
		{"writable by a group", "chmod", func(_, dir string) error { return errors.Join(os.Mkdir(dir, 0o700), os.Chmod(dir, 0o770)) }},
		{"sticky", "chmod", func(_, dir string) error {
			return errors.Join(os.Mkdir(dir, 0o700), os.Chmod(dir, 0o777|fs.ModeSticky))
		}},
		{"a link to another directory", "not a directory", func(parent, dir string) error { return os.Symlink(parent, dir) }},
		{"a file", "directory", func(_, dir string) error { return os.WriteFile(dir, nil, 0o600) }},
		{"in a directory that everyone can write to", "chmod", func(parent, _ string) error { return os.Chmod(parent, 0o777) }},
		{"in a directory of another user", "uid 1000", func(parent, _ string) error { return os.Chown(parent, 1000, 1000) }},
	} {
		parent := filepath.Join(t.TempDir(), "parent")
		dir := filepath.Join(parent, "state")
		check(t, errors.Join(os.Mkdir(parent, 0o755), tc.make(parent, dir)))
		_, err := Open(dir, false)
		if err == nil || !strings.Contains(err.Error(), tc.says) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: error %v, want one line with %q", tc.name, err, tc.says)
		}
	}
}

func TestADirectoryIsMadeWithItsParents(t *testing.T) {
	base := t.TempDir()
	check(t, os.Chmod(base, 0o777|fs.ModeSticky)) // as /tmp
	dir := filepath.Join(base, "a/b/state")
	s, err := Open(dir, false)
	check(t, err)
	if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 || s.Dir() != dir {
		t.Errorf("%v, %v, %s", info, err, s.Dir())
	}
}

func TestTheParentMayBeALinkOfRoot(t *testing.T) {
	base := t.TempDir()
	dir := filepath.Join(base, "var/run/nvidia-shim")
	check(t, errors.Join(os.Mkdir(filepath.Join(base, "run"), 0o755), os.Mkdir(filepath.Join(base, "var"), 0o755),
		os.Symlink("../run", filepath.Join(base, "var/run"))))
	if _, err := Open(dir, false); err != nil {
		t.Error(err)
	}
	check(t, os.Lchown(filepath.Join(base, "var/run"), 1000, 1000))
	if _, err := Open(dir, false); err == nil {
		t.Error("a link of another user was followed")
	}
}

func TestT62AStoredValueIsReadBackOrNotAtAll(t *testing.T) {
	type value struct{ Files []string }
	s := open(t)
	name := filepath.Join(s.Dir(), "driver.json")
	want := value{[]string{"a", "b"}}
	for what, spoil := range map[string]func() error{
		"truncated":          func() error { return os.Truncate(name, 5) },
		"empty":              func() error { return os.Truncate(name, 0) },
		"another type":       func() error { return os.WriteFile(name, []byte("[1]"), 0o600) },
		"too large":          func() error { return os.Truncate(name, maxSize+1) },
		"owned by another":   func() error { return os.Chown(name, 1234, 1234) },
		"writable by others": func() error { return os.Chmod(name, 0o620) },
		"missing":            func() error { return os.Remove(name) },
		"a link":             func() error { return errors.Join(os.Rename(name, name+"2"), os.Symlink(name+"2", name)) },
		"a FIFO":             func() error { return errors.Join(os.Remove(name), unix.Mkfifo(name, 0o600)) },
	} {
		var got value
		check(t, s.Store("driver.json", want))
		if !s.Load("driver.json", &got) || fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("stored over one that is %s it is %v", what, got)
		}
		check(t, spoil())
		if s.Load("driver.json", &value{}) {
			t.Errorf("%s: it was loaded", what)
		}
	}
}

func TestStoringAtTheSameTimeNeverTearsAValue(t *testing.T) {
	s := open(t)
	check(t, s.Store("v", "x"))
	var group sync.WaitGroup
	for n := range 4 {
		group.Go(func() {
			for range 50 {
				if err := s.Store("v", strings.Repeat("x", 1+n*10000)); err != nil {
					t.Error(err)
				}
				for range 5 {
					var got string
					if !s.Load("v", &got) || got == "" || strings.Trim(got, "x") != "" {
						t.Errorf("%.20q", got)
					}
				}
			}
		})
	}
	group.Wait()
}

func TestALockHasOneHolder(t *testing.T) {
	s := open(t)
	check(t, os.Symlink(filepath.Join(t.TempDir(), "x"), filepath.Join(s.Dir(), "link")))
	if _, err := s.Lock("link", 0); !errors.Is(err, unix.ELOOP) {
		t.Errorf("a link: %v", err)
	}
	held, err := s.Lock("lock", 0)
	check(t, err)
	if _, err := s.Lock("lock", 10*time.Millisecond); !errors.Is(err, ErrBusy) {
		t.Errorf("the second time: %v", err)
	}
	time.AfterFunc(20*time.Millisecond, func() { held.Close() })
	again, err := s.Lock("lock", time.Minute)
	check(t, err)
	again.Close()
}

func TestTemporaryFilesOfKilledProcessesGo(t *testing.T) {
	s := open(t)
	old, fresh, other := filepath.Join(s.Dir(), ".v.1"), filepath.Join(s.Dir(), ".v.2"), filepath.Join(s.Dir(), ".w.1")
	for _, name := range []string{old, fresh, other} {
		check(t, os.WriteFile(name, nil, 0o600))
	}
	past := time.Now().Add(-time.Hour)
	check(t, errors.Join(os.Chtimes(old, past, past), os.Chtimes(other, past, past), s.Store("v", "x")))
	if left, err := filepath.Glob(filepath.Join(s.Dir(), ".*")); err != nil || !slices.Equal(left, []string{fresh, other}) {
		t.Errorf("left are %v, %v", left, err)
	}
}
