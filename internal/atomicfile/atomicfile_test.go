package atomicfile

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

func check(t *testing.T, path, content string, mode os.FileMode) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil || string(data) != content {
		t.Errorf("%s: %q, %v", path, data, err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode() != mode {
		t.Errorf("%s: mode %v, %v; want %v", path, info.Mode(), err, mode)
	}
	noTemporary(t, path)
}

func noTemporary(t *testing.T, path string) {
	t.Helper()
	if left, err := filepath.Glob(filepath.Join(filepath.Dir(path), ".*")); err != nil || len(left) > 0 {
		t.Errorf("left behind: %q, %v", left, err)
	}
}

func TestAFileIsReplaced(t *testing.T) {
	defer unix.Umask(unix.Umask(0o077))
	path := filepath.Join(t.TempDir(), "file")
	for _, content := range []string{"old", "new"} {
		if err := Write(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
		check(t, path, content, 0o644)
	}
	like := path + ".like"
	if err := errors.Join(WriteLike(path, like, []byte("x"), 0o640), os.WriteFile(like, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	check(t, path, "x", 0o640)
	if err := WriteLike(path, like, []byte("y"), 0o640); err != nil {
		t.Fatal(err)
	}
	check(t, path, "y", 0o600)
}

func TestAFailureLeavesNothing(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	if err := os.MkdirAll(filepath.Join(path, "full"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := Write(path, nil, 0o600); err == nil {
		t.Error("a directory was replaced")
	}
	noTemporary(t, path)
	if err := Write(filepath.Join(path, "missing", "file"), nil, 0o600); err == nil {
		t.Error("written into a missing directory")
	}
}
