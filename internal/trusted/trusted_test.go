package trusted

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestTheCheck(t *testing.T) {
	euid := uint32(os.Geteuid())
	const file, dir = uint32(unix.S_IFREG), uint32(unix.S_IFDIR)
	for _, tc := range []struct {
		name  string
		check func(*unix.Stat_t) error
		mode  uint32
		uid   uint32
		says  string // "" if it passes
	}{
		{"root's file", File, file | 0o644, 0, ""},
		{"a file of the effective user", File, file | 0o600, euid, ""},
		{"another user's file", File, file | 0o644, 12345, "is owned by uid 12345: chown it to root"},
		{"a file of an unmapped user", File, file | 0o644, 65534, "is owned by uid 65534: chown it to root, or if this is a user namespace, "},
		{"a group's file", File, file | 0o664, 0, "is writable by users other than root (mode 0664): chmod go-w it"},
		{"everyone's file", File, file | 0o602, 0, "is writable by users other than root (mode 0602): chmod go-w it"},
		{"a directory as a file", File, dir | 0o700, 0, "is not a regular file"},
		{"a device", File, unix.S_IFCHR | 0o600, 0, "is not a regular file"},
		{"root's directory", Directory, dir | 0o755, 0, ""},
		{"a file as a directory", Directory, file | 0o700, 0, "is not a directory"},
		{"a sticky directory", Directory, dir | unix.S_ISVTX | 0o777, 0, "is writable by users other than root (mode 1777)"},
		{"a sticky parent", Parent, dir | unix.S_ISVTX | 0o777, 0, ""},
		{"a parent that is not sticky", Parent, dir | 0o775, 0, "is writable by users other than root (mode 0775)"},
		{"another user's parent", Parent, dir | unix.S_ISVTX | 0o755, 12345, "is owned by uid 12345"},
		{"root's driver file", RootFile, file | 0o755, 0, ""},
		{"another user's driver file", RootFile, file | 0o755, 12345, "is owned by uid 12345"},
		{"a driver file that raises privileges", RootFile, file | unix.S_ISUID | 0o755, 0, "is set-user-id or set-group-id"},
		{"root's driver directory", RootDirectory, dir | 0o755, 0, ""},
		{"a group's driver directory", RootDirectory, dir | 0o775, 0, "is writable by users other than root"},
	} {
		err := tc.check(&unix.Stat_t{Mode: tc.mode, Uid: tc.uid})
		if tc.says == "" && err != nil || tc.says != "" && (err == nil || !strings.HasPrefix(err.Error(), tc.says)) {
			t.Errorf("%s: error %v, want %q", tc.name, err, tc.says)
		}
	}
}

func TestRead(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	for name, mode := range map[string]os.FileMode{"good": 0o600, "open": 0o666} {
		err := errors.Join(os.WriteFile(at(name), []byte("content"), mode), os.Chmod(at(name), mode))
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(os.Symlink("good", at("link")), unix.Mkfifo(at("fifo"), 0o600)); err != nil {
		t.Fatal(err)
	}
	if data, _, err := Read(at("good"), 7); err != nil || string(data) != "content" {
		t.Errorf("read %q, %v", data, err)
	}
	for name, says := range map[string]string{
		"open": "is writable by users other than root", "link": "too many levels of symbolic links", "fifo": "is not a regular file",
		".": "is not a regular file",
	} {
		if _, _, err := Read(at(name), 7); err == nil || !strings.Contains(err.Error(), says) || !strings.Contains(err.Error(), at(name)) {
			t.Errorf("%s: error %v, want %q", name, err, says)
		}
	}
	if _, _, err := Read(at("good"), 6); err == nil || !strings.Contains(err.Error(), "is larger than 6 bytes") {
		t.Errorf("too large: %v", err)
	}
	if _, _, err := Read(at("missing"), 7); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("missing: %v", err)
	}
}

func TestAProgram(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	for _, name := range []string{"bin/run", "others/run", "owned/run", "group/run"} {
		err := errors.Join(os.MkdirAll(filepath.Dir(at(name)), 0o755), os.WriteFile(at(name), nil, 0o755))
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(os.Symlink("bin/run", at("link")), os.Symlink("others/run", at("link to others")),
		os.Chmod(at("others"), 0o777), os.Chown(at("owned"), 65534, 0), os.Chmod(at("group"), 0o2775),
		os.WriteFile(at("bin/owned"), nil, 0o755), os.Chown(at("bin/owned"), 65534, 0)); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"bin/run": "", "link": "", "group/run": "", "none": "no such file", "bin": "is not a regular file",
		"others/run": "others is writable by users other than root", "link to others": "others is writable by users other than root",
		"owned/run": "owned is owned by uid 65534", "bin/owned": "bin/owned is owned by uid 65534",
	} {
		real, err := Program(at(name))
		switch {
		case want == "" && (err != nil || filepath.Base(real) != "run"):
			t.Errorf("%s: %s, %v", name, real, err)
		case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
			t.Errorf("%s: %v, want %q", name, err, want)
		}
	}
}
