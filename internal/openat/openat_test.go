package openat

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// tree makes a tree with a secret beside it, and opens it.
func tree(t *testing.T) (dir string, root int) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "root")
	check(t, os.MkdirAll(dir+"/dir", 0o755))
	check(t, os.WriteFile(dir+"/../secret", []byte("secret"), 0o644))
	check(t, os.WriteFile(dir+"/file", []byte("12345"), 0o644))
	check(t, os.Symlink("/file", dir+"/absolute"))
	check(t, os.Symlink("../../../../file", dir+"/dir/up"))
	check(t, os.Symlink("../secret", dir+"/out"))
	check(t, os.Symlink("/proc/self/cwd", dir+"/magic"))
	check(t, unix.Mkfifo(dir+"/fifo", 0o644))
	root, err := Root(dir)
	check(t, err)
	t.Cleanup(func() { unix.Close(root) })
	return dir, root
}

func TestANameNeverLeadsOut(t *testing.T) {
	_, root := tree(t)
	for _, c := range []struct {
		name  string
		flags uint64
		way   Way
		want  error
	}{
		{"/file", 0, Links, nil}, {"file", 0, OneMount, nil}, {"/", 0, NoLinks, nil},
		{"/../../file", 0, Links, nil}, {"../file", 0, NoLinks, nil},
		{"../secret", 0, Links, unix.ENOENT}, {"../secret", 0, NoLinks, unix.ENOENT}, {"/../secret", 0, OneMount, unix.ENOENT},
		{"absolute", 0, Links, nil}, {"dir/up", 0, Links, nil}, {"out", 0, Links, unix.ENOENT}, {"magic", 0, Links, unix.ENOENT},
		{"absolute", 0, NoLinks, unix.ELOOP}, {"absolute", 0, OneMount, unix.ELOOP}, {"absolute", unix.O_NOFOLLOW, OneMount, nil},
	} {
		fd, _, err := Stat(root, c.name, c.flags, c.way)
		if !errors.Is(err, c.want) {
			t.Errorf("%s, %x: %v, want %v", c.name, c.way, err, c.want)
		}
		if err == nil {
			unix.Close(fd)
		}
	}
}

func TestAMagicLinkAndAMount(t *testing.T) {
	host, err := Root("/")
	check(t, err)
	defer unix.Close(host)
	for way, want := range map[Way]error{Links: nil, NoLinks: nil, OneMount: unix.EXDEV} {
		fd, err := Open(host, "/proc/1", 0, way)
		unix.Close(fd)
		if !errors.Is(err, want) {
			t.Errorf("/proc, %x: %v, want %v", way, err, want)
		}
	}
	if fd, err := Open(host, "/proc/self/exe", 0, Links); !errors.Is(err, unix.ELOOP) {
		unix.Close(fd)
		t.Errorf("a magic link: %v", err)
	}
}

func TestReading(t *testing.T) {
	dir, root := tree(t)
	read := func(name string, limit int64) (string, error) {
		fd, st, err := Stat(root, name, 0, NoLinks)
		check(t, err)
		defer unix.Close(fd)
		data, err := Read(fd, &st, limit)
		return string(data), err
	}
	if text, err := read("file", 5); text != "12345" || err != nil {
		t.Errorf("%q, %v", text, err)
	}
	if _, err := read("file", 4); !errors.Is(err, ErrTooLarge) {
		t.Error(err)
	}
	for _, name := range []string{"fifo", "dir"} {
		if _, err := read(name, 5); !errors.Is(err, ErrNotRegular) {
			t.Errorf("%s: %v", name, err)
		}
	}
	fd, st, err := Stat(root, "file", 0, NoLinks)
	check(t, err)
	defer unix.Close(fd)
	check(t, os.WriteFile(dir+"/file", []byte("12"), 0o644))
	if data, err := Read(fd, &st, 5); string(data) != "12" || err != nil {
		t.Errorf("it shrank: %q, %v", data, err)
	}
	if names, err := ReadDir(root, 6); len(names) != 6 || err != nil {
		t.Errorf("%q, %v", names, err)
	}
	if names, err := ReadDir(root, 5); len(names) != 5 || !errors.Is(err, ErrTooLarge) {
		t.Errorf("%q, %v", names, err)
	}
	if _, err := ReadDir(fd, 5); !errors.Is(err, unix.ENOTDIR) {
		t.Error(err)
	}
}
