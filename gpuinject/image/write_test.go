package image

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"
)

const own, target = "/opt/own", "/opt/own/bin/x"

func TestWhatIsMadeBelongsToTheOwnerOfItsDirectory(t *testing.T) {
	i := newImage(t)
	check(t, os.Chown(i.path("etc"), 100000, 100001))
	check(t, os.Chmod(i.path("etc"), 0o755|os.ModeSetgid))
	old := unix.Umask(0o077)
	defer unix.Umask(old)
	check(t, i.WriteFile("/etc/ld.so.cache", []byte("cache")))
	check(t, i.WriteFile("/etc/new/ld.so.conf.d/x.conf", []byte("conf")))
	check(t, i.MakeLink("/etc/a/b/x", target, own))
	for name, mode := range map[string]uint32{
		"etc/ld.so.cache": unix.S_IFREG | 0o644, "etc/new/ld.so.conf.d/x.conf": unix.S_IFREG | 0o644,
		"etc/new": unix.S_IFDIR | 0o755, "etc/new/ld.so.conf.d": unix.S_IFDIR | 0o755,
		"etc/a": unix.S_IFDIR | 0o755, "etc/a/b": unix.S_IFDIR | 0o755, "etc/a/b/x": unix.S_IFLNK | 0o777,
	} {
		var st unix.Stat_t
		check(t, unix.Lstat(i.path(name), &st))
		if st.Uid != 100000 || st.Gid != 100001 || st.Mode != mode {
			t.Errorf("%s: %d:%d %o, want 100000:100001 %o", name, st.Uid, st.Gid, st.Mode, mode)
		}
	}
}

// What another process put in the place of a name that was just made stays as it is.
func TestOnlyWhatWasJustMadeChangesItsOwner(t *testing.T) {
	i := newImage(t)
	dir, err := i.makeDirectory("/shared")
	check(t, err)
	dir.stat.Uid, dir.stat.Gid = 100000, 100001
	i.write("shared/secret", "root's")
	check(t, os.Chmod(i.path("shared/secret"), 0o600))
	mkdir(t, i.path("shared/private"))
	check(t, os.Chmod(i.path("shared/private"), 0o700))
	i.link("secret", "shared/theirs")
	check(t, os.Lchown(i.path("shared/theirs"), 1000, 1000))
	mkdir(t, i.path("shared/locked"))
	check(t, os.Chmod(i.path("shared/locked"), 0))
	check(t, os.Lchown(i.path("shared/locked"), 1000, 1000))
	for _, name := range []string{"secret", "private", "theirs", "locked"} {
		var before, after unix.Stat_t
		check(t, unix.Lstat(i.path("shared/"+name), &before))
		asDirectory := dir.adoptName(name, unix.O_RDONLY|unix.O_DIRECTORY, unix.S_IFDIR, 0o755)
		asLink := dir.adoptName(name, unix.O_PATH, unix.S_IFLNK|0o777, 0)
		check(t, unix.Lstat(i.path("shared/"+name), &after))
		if asDirectory == nil || asLink == nil || before != after {
			t.Errorf("%s: %v, %v; before %+v, after %+v", name, asDirectory, asLink, before, after)
		}
	}
}

// A process that shares the root file system exchanges names all the time.
func TestExchangedNamesGiveNothingOfRootsAway(t *testing.T) {
	for name, link := range map[string]string{"file": "/shared/x", "directory": "/shared/x/link"} {
		t.Run(name, func(t *testing.T) {
			i := newImage(t)
			mkdir(t, i.path("shared"))
			check(t, os.Chown(i.path("shared"), 100000, 100000))
			secret, made := i.path("shared/secret"), i.path("shared/x")
			check(t, os.WriteFile(secret, []byte("root's"), 0o600))
			if name == "directory" {
				check(t, os.Remove(secret))
				check(t, os.Mkdir(secret, 0o700))
			}
			var before, after unix.Stat_t
			check(t, unix.Lstat(secret, &before))
			for range 500 {
				i.reopen()
				stop := flip(t, made, secret)
				_ = i.MakeLink(link, target, own)
				stop()
				if unix.Lstat(secret, &after) != nil || after.Ino != before.Ino {
					_ = os.RemoveAll(secret)
					check(t, os.Rename(made, secret))
				}
				check(t, os.RemoveAll(made))
				check(t, unix.Lstat(secret, &after))
				if after.Uid != before.Uid || after.Mode != before.Mode {
					t.Fatalf("root's %s is now of user %d, mode %o", name, after.Uid, after.Mode)
				}
			}
		})
	}
}

// A process that shares the root file system gives a file of root's the name of the temporary file.
func TestATemporaryFileOfAnotherProcessIsNotWritten(t *testing.T) {
	i := newImage(t)
	mkdir(t, i.path("shared"))
	secret := i.path("shared/secret")
	check(t, os.WriteFile(secret, []byte("root's"), 0o600))
	var done atomic.Bool
	var others sync.WaitGroup
	others.Go(func() {
		for !done.Load() {
			_ = os.Link(secret, i.path("shared/.f.nvidia-shim"))
		}
	})
	for n := range 300 {
		_ = i.WriteFile("/shared/f", fmt.Append(nil, n))
	}
	done.Store(true)
	others.Wait()
	if got := read(t, secret); got != "root's" {
		t.Errorf("root's file has %q", got)
	}
}

func TestTheSameContentIsNotWrittenAgain(t *testing.T) {
	i := newImage(t)
	inode := func() uint64 {
		var st unix.Stat_t
		check(t, unix.Lstat(i.path("etc/f"), &st))
		return st.Ino
	}
	check(t, i.WriteFile("/etc/f", []byte("one")))
	first := inode()
	check(t, i.WriteFile("/etc/f", []byte("one")))
	if inode() != first {
		t.Error("the file was replaced by an equal one")
	}
	// Another name of the file keeps its content.
	check(t, os.Link(i.path("etc/f"), i.path("hard")))
	for _, content := range []string{"two", "on", "one and more", ""} {
		check(t, i.WriteFile("/etc/f", []byte(content)))
		if got := read(t, i.path("etc/f")); got != content {
			t.Errorf("%q, want %q", got, content)
		}
	}
	if got := read(t, i.path("hard")); got != "one" {
		t.Errorf("the other name has %q", got)
	}
}

func TestWhatAKilledShimLeftIsReplaced(t *testing.T) {
	for _, leave := range []func(name string) error{
		func(name string) error { return os.WriteFile(name, []byte("half"), 0o600) },
		func(name string) error { return os.Symlink("../canary", name) },
		func(name string) error { return unix.Mkfifo(name, 0o600) },
	} {
		i := newImage(t)
		check(t, os.WriteFile(i.path("canary"), []byte("as it was"), 0o600))
		check(t, leave(i.path("etc/.f.nvidia-shim")))
		check(t, i.WriteFile("/etc/f", []byte("whole")))
		if got := read(t, i.path("etc/f")) + read(t, i.path("canary")); got != "wholeas it was" {
			t.Errorf("%q", got)
		}
		if left, err := os.Lstat(i.path("etc/.f.nvidia-shim")); err == nil {
			t.Errorf("it is still there: %v", left)
		}
	}
}

func TestAFullOrReadOnlyFileSystemKeepsTheOldFile(t *testing.T) {
	dir := t.TempDir()
	inMountNamespace(t, func() {
		err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=64k")
		root, openErr := Open(dir)
		if err := errors.Join(err, openErr); err != nil {
			t.Error(err)
			return
		}
		defer root.Close()
		if err := root.WriteFile("/f", []byte("old")); err != nil {
			t.Error(err)
		}
		if err := root.WriteFile("/f", make([]byte, 1<<20)); !errors.Is(err, unix.ENOSPC) {
			t.Errorf("%v, want ENOSPC", err)
		}
		if entries, _ := os.ReadDir(dir); len(entries) != 1 {
			t.Errorf("left: %v", entries)
		}
		if err := unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
			t.Error(err)
		}
		for _, err := range []error{
			root.CanWriteFile("/f"), root.WriteFile("/f", []byte("new")), root.CanWriteFile("/a/b"),
			root.CanMakeLink("/a/l", own), root.MakeLink("/a/l", target, own),
		} {
			if !errors.Is(err, unix.EROFS) {
				t.Errorf("%v, want EROFS", err)
			}
		}
		if data, err := os.ReadFile(dir + "/f"); err != nil || string(data) != "old" {
			t.Errorf("%q, %v", data, err)
		}
	})
}

func TestALinkIsMadeWhereNothingIs(t *testing.T) {
	for _, tc := range []struct {
		name string
		make func(i *testImage)
		err  error
	}{
		{"nothing", func(i *testImage) { mkdir(t, i.path("d")) }, nil},
		{"no directories", func(*testImage) {}, nil},
		{"a link to the same", func(i *testImage) { i.link(target, "d/e/x") }, nil},
		{"a link to another place in the directory", func(i *testImage) { i.link("/opt/own/y", "d/e/x") }, nil},
		{"a relative link into the directory", func(i *testImage) { i.link("../../opt/own/y", "d/e/x") }, nil},
		{"a link to the directory itself", func(i *testImage) { i.link("/opt/own", "d/e/x") }, fs.ErrExist},
		{"a link elsewhere", func(i *testImage) { i.link("/opt/owner/y", "d/e/x") }, fs.ErrExist},
		{"a loop", func(i *testImage) { i.link("x", "d/e/x") }, fs.ErrExist},
		{"a file", func(i *testImage) { i.write("d/e/x", "theirs") }, fs.ErrExist},
		{"a directory", func(i *testImage) { mkdir(t, i.path("d/e/x")) }, fs.ErrExist},
		{"a file above", func(i *testImage) { i.write("d", "theirs") }, unix.ENOTDIR},
		{"a file two above", func(i *testImage) { i.write("d/e", "theirs") }, unix.ENOTDIR},
		{"a link out of the image above", func(i *testImage) { i.link(i.host, "d") }, fs.ErrExist},
		{"a link that climbs above", func(i *testImage) { i.link("../host", "d") }, fs.ErrExist},
	} {
		t.Run(tc.name, func(t *testing.T) {
			i := newImage(t)
			tc.make(i)
			want, _ := os.Readlink(i.path("d/e/x"))
			if tc.err == nil {
				want = target
			}
			can, err := i.CanMakeLink("/d/e/x", own), i.MakeLink("/d/e/x", target, own)
			if !errors.Is(can, tc.err) || !errors.Is(err, tc.err) {
				t.Errorf("planned %v, made %v, want %v", can, err, tc.err)
			}
			if got, _ := os.Readlink(i.path("d/e/x")); got != want {
				t.Errorf("link to %q, want %q", got, want)
			}
			// A file is possible in the same places; an existing one is replaced.
			if tc.err != nil && !strings.HasSuffix(tc.name, "above") {
				return
			}
			file := filepath.Dir("/d/e/x") + "/file"
			can, err = i.CanWriteFile(file), i.WriteFile(file, []byte("x"))
			if !errors.Is(can, tc.err) || !errors.Is(err, tc.err) {
				t.Errorf("file: planned %v, made %v, want %v", can, err, tc.err)
			}
			i.unchanged()
		})
	}
}

// What was found while planning is not believed when a link is replaced.
func TestALinkThatChangedAfterThePlanStays(t *testing.T) {
	for _, others := range []int{0, maxSeen} {
		i := newImage(t)
		i.link("/opt/own/y", "etc/x")
		check(t, i.CanMakeLink("/etc/x", own))
		for n := range others {
			i.readLink("/etc/" + strconv.Itoa(n))
		}
		check(t, os.Remove(i.path("etc/x")))
		i.link("/opt/theirs", "etc/x")
		if err := i.MakeLink("/etc/x", target, own); !errors.Is(err, fs.ErrExist) {
			t.Errorf("%v, want %v", err, fs.ErrExist)
		}
		if got, _ := os.Readlink(i.path("etc/x")); got != "/opt/theirs" {
			t.Errorf("after %d other look-ups it leads to %q", others, got)
		}
	}
}
