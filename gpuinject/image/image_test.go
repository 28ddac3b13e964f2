package image

import (
	"bytes"
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/mountns"
)

func TestMain(m *testing.M) {
	if os.Geteuid() != 0 {
		os.Stderr.WriteString("rootfs: the tests make device nodes and mounts: run them as root\n")
		os.Exit(1)
	}
	os.Exit(m.Run())
}

const secret = "a file of the host"

// image is a directory that plays a root file system, beside a directory of the
// host that nothing in the image may reach.
type image struct {
	t         testing.TB
	dir, host string
	root      *Root
}

func newImage(t testing.TB) *image {
	t.Helper()
	base := t.TempDir()
	i := &image{t: t, dir: filepath.Join(base, "rootfs"), host: filepath.Join(base, "host")}
	for _, dir := range []string{i.dir, i.host, i.path("etc")} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	i.check(os.WriteFile(filepath.Join(i.host, "secret"), []byte(secret), 0o600))
	root, err := Open(i.dir)
	i.check(err)
	t.Cleanup(func() { root.Close() })
	i.root = root
	return i
}

func (i *image) path(name string) string { return filepath.Join(i.dir, name) }

func (i *image) check(err error) {
	i.t.Helper()
	if err != nil {
		i.t.Fatal(err)
	}
}

func (i *image) write(name, content string) {
	i.t.Helper()
	i.check(os.MkdirAll(filepath.Dir(i.path(name)), 0o755))
	i.check(os.WriteFile(i.path(name), []byte(content), 0o644))
}

func (i *image) link(target, name string) {
	i.t.Helper()
	i.check(os.MkdirAll(filepath.Dir(i.path(name)), 0o755))
	i.check(os.Symlink(target, i.path(name)))
}

// hostUnchanged fails the test if the host's directory holds anything new.
func (i *image) hostUnchanged() {
	i.t.Helper()
	entries, err := os.ReadDir(i.host)
	i.check(err)
	data, err := os.ReadFile(filepath.Join(i.host, "secret"))
	if err != nil || len(entries) != 1 || string(data) != secret {
		i.t.Errorf("the host's directory has changed: %v, %q, %v", entries, data, err)
	}
}

// noTemporaryFiles fails the test if a write left its temporary file in dir.
func (i *image) noTemporaryFiles(dir string) {
	i.t.Helper()
	entries, err := os.ReadDir(i.path(dir))
	i.check(err)
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), ".") {
			i.t.Errorf("%s is left in %s", e.Name(), dir)
		}
	}
}

func TestALinkNeverLeadsOutOfTheRoot(t *testing.T) {
	for _, test := range []struct{ name, target string }{
		{"absolute", "HOST/secret"},
		{"relative", "../../../../../../../../HOST/secret"},
		{"to the parent of the root", "../../host/secret"},
		{"through the root directory of a process", "/proc/1/root/HOST/secret"},
		{"through the root directory of this process", "/proc/self/root/HOST/secret"},
		{"through a descriptor", "/proc/self/cwd/../host/secret"},
	} {
		t.Run(test.name, func(t *testing.T) {
			i := newImage(t)
			target := strings.ReplaceAll(test.target, "HOST", strings.TrimPrefix(i.host, "/"))
			if filepath.IsAbs(test.target) || strings.HasPrefix(test.target, "HOST") {
				target = "/" + strings.TrimPrefix(target, "/")
			}
			i.link(target, "etc/file")
			i.link(filepath.Dir(target), "etc/dir")
			if data, err := i.root.ReadFile("/etc/file", 1<<20); err == nil {
				t.Errorf("read %q", data)
			}
			if data, err := i.root.ReadFile("/etc/dir/secret", 1<<20); err == nil {
				t.Errorf("read %q", data)
			}
			if names, err := i.root.ReadDir("/etc/dir", 100); err == nil {
				t.Errorf("listed %q", names)
			}
			if name, err := i.root.Canonical("/etc/file"); err == nil {
				t.Errorf("is called %q", name)
			}
			if _, err := i.root.Stat("/etc/file"); err == nil {
				t.Error("could be looked at")
			}
			for _, mkdir := range []bool{false, true} {
				if err := i.root.WriteFile("/etc/dir/created", []byte("x"), 0o644, mkdir); err == nil {
					t.Error("was written through")
				}
			}
			// The name itself is replaced, never followed.
			if err := i.root.WriteFile("/etc/file", []byte("ours"), 0o644, false); err != nil {
				t.Error(err)
			}
			if info, err := os.Lstat(i.path("etc/file")); err != nil || !info.Mode().IsRegular() {
				t.Errorf("is %v, %v", info, err)
			}
			i.hostUnchanged()
			i.noTemporaryFiles("etc")
		})
	}
}

func TestALinkInsideTheRootIsFollowedAsInTheContainer(t *testing.T) {
	i := newImage(t)
	i.write("usr/lib/libc.so.6", "libc")
	i.link("usr/lib", "lib")
	i.link("/usr/lib", "abs")
	i.link("../../../../usr/lib", "usr/up")
	i.link("/lib/libc.so.6", "etc/libc")
	for _, name := range []string{"/lib/libc.so.6", "/abs/libc.so.6", "/usr/up/libc.so.6", "/etc/libc", "lib/libc.so.6", "/../../lib/libc.so.6", "/etc/../lib//libc.so.6"} {
		if data, err := i.root.ReadFile(name, 100); err != nil || string(data) != "libc" {
			t.Errorf("%s: %q, %v", name, data, err)
		}
		if got, err := i.root.Canonical(name); err != nil || got != "/usr/lib/libc.so.6" {
			t.Errorf("%s is called %q, %v", name, got, err)
		}
	}
	if got, err := i.root.Canonical("/"); err != nil || got != "/" {
		t.Errorf("the root is called %q, %v", got, err)
	}
	if got, err := i.root.Canonical("/../.."); err != nil || got != "/" {
		t.Errorf("the parent of the root is called %q, %v", got, err)
	}
	i.check(i.root.WriteFile("/abs/new", []byte("x"), 0o644, false))
	if data, err := os.ReadFile(i.path("usr/lib/new")); err != nil || string(data) != "x" {
		t.Errorf("%q, %v", data, err)
	}
	i.check(i.root.WriteFile("/../../../escaped", []byte("x"), 0o644, true))
	if _, err := os.Stat(i.path("escaped")); err != nil {
		t.Error(err)
	}
}

func TestTargetIsWhereARuntimeWouldMakeAName(t *testing.T) {
	i := newImage(t)
	i.write("usr/lib/libc.so.6", "libc")
	i.link("usr/lib", "lib")
	i.link("/mnt/volume/nvidia", "usr/local/nvidia")
	i.link("../../mnt/volume", "usr/local/up")
	i.link("/usr/local/nvidia/deeper", "etc/chain")
	i.link("../../../../../../host", "etc/out")
	i.link("loop", "etc/loop")
	targets := i.root.Targets()
	for name, want := range map[string]string{
		"/lib/libc.so.6":              "/usr/lib/libc.so.6",
		"/lib/x/new":                  "/usr/lib/x/new",
		"/usr/local/nvidia":           "/mnt/volume/nvidia",
		"/usr/local/nvidia/lib64":     "/mnt/volume/nvidia/lib64",
		"/usr/local/up/made":          "/mnt/volume/made",
		"/etc/chain/file":             "/mnt/volume/nvidia/deeper/file",
		"/etc/out/file":               "/host/file",
		"/none/of/these":              "/none/of/these",
		"/etc/../lib/../lib/new":      "/usr/lib/new",
		"/":                           "/",
		"/etc/loop":                   "/etc/loop",
		"/etc/loop/file":              "/etc/loop/file",
		"/lib":                        "/usr/lib",
		"/usr/local/up/../new":        "/usr/local/new",
		"/usr/lib/libc.so.6/not/here": "/usr/lib/libc.so.6/not/here",
	} {
		for range 2 { // looked up, and remembered
			if got := targets.Of(name); got != want {
				t.Errorf("%s leads to %s by Targets, want %s", name, got, want)
			}
			if _, err := i.root.Stat(name); targets.There(name) != (err == nil) {
				t.Errorf("%s is there by Targets: %v; %v", name, targets.There(name), err)
			}
		}
		if got := i.root.Target(name); got != want {
			t.Errorf("%s is made at %s, want %s", name, got, want)
		}
	}
}

func TestALoopOfLinksIsAnErrorAndNotAHang(t *testing.T) {
	i := newImage(t)
	i.link("b", "etc/a")
	i.link("a", "etc/b")
	i.link("/etc/dir", "etc/dir")
	if _, err := i.root.ReadFile("/etc/a", 100); !errors.Is(err, unix.ELOOP) {
		t.Error(err)
	}
	if err := i.root.WriteFile("/etc/dir/file", nil, 0o644, true); err == nil {
		t.Error("a loop was written through")
	}
	// More links than the kernel follows, each of them harmless.
	i.write("etc/end", "end")
	i.link("end", "etc/l0")
	for n := 1; n < 60; n++ {
		i.link("l"+strconv.Itoa(n-1), "etc/l"+strconv.Itoa(n))
	}
	if _, err := i.root.ReadFile("/etc/l59", 100); !errors.Is(err, unix.ELOOP) {
		t.Error(err)
	}
}

func TestMagicLinksAreRefused(t *testing.T) {
	root, err := Open("/proc")
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	pid := strconv.Itoa(os.Getpid())
	for _, name := range []string{"/root/etc/passwd", "/cwd/rootfs_test.go", "/exe", "/fd/0"} {
		if _, err := root.Stat(pid + name); !errors.Is(err, unix.ELOOP) {
			t.Errorf("%s: %v, want ELOOP", name, err)
		}
	}
	if err := root.WriteFile(pid+"/cwd/created", []byte("x"), 0o644, false); !errors.Is(err, unix.ELOOP) {
		t.Errorf("write: %v, want ELOOP", err)
	}
	if _, err := os.Stat("created"); err == nil {
		os.Remove("created")
		t.Error("a file was written through a magic link")
	}
}

// opened runs fn and tells whether anything opened name meanwhile; O_PATH does not.
func opened(t *testing.T, name string, fn func()) bool {
	t.Helper()
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if _, err := unix.InotifyAddWatch(fd, name, unix.IN_OPEN); err != nil {
		t.Fatal(err)
	}
	fn()
	n, _ := unix.Read(fd, make([]byte, 4096))
	return n > 0
}

func TestWhatIsNoRegularFileIsNeverOpened(t *testing.T) {
	node := func(mode uint32, major, minor uint32) func(string) error {
		return func(name string) error { return unix.Mknod(name, mode|0o666, int(unix.Mkdev(major, minor))) }
	}
	for _, test := range []struct {
		name string
		make func(string) error
	}{
		{"a FIFO without a writer", func(name string) error { return unix.Mkfifo(name, 0o666) }},
		{"the watchdog", node(unix.S_IFCHR, 10, 130)},
		{"kmsg", node(unix.S_IFCHR, 1, 11)},
		{"the null device", node(unix.S_IFCHR, 1, 3)},
		{"an endless device", node(unix.S_IFCHR, 1, 5)},
		{"a block device", node(unix.S_IFBLK, 7, 250)},
		{"a socket", func(name string) error {
			l, err := net.ListenUnix("unix", &net.UnixAddr{Name: name, Net: "unix"})
			if err == nil {
				l.SetUnlinkOnClose(false)
				l.Close()
			}
			return err
		}},
		{"a directory", func(name string) error { return os.Mkdir(name, 0o755) }},
	} {
		t.Run(test.name, func(t *testing.T) {
			// The path of a socket has a limit that the name of a test may break.
			dir, err := os.MkdirTemp("", "r")
			if err != nil {
				t.Fatal(err)
			}
			defer os.RemoveAll(dir)
			name := filepath.Join(dir, "f")
			if err := test.make(name); err != nil {
				t.Fatal(err)
			}
			root, err := Open(dir)
			if err != nil {
				t.Fatal(err)
			}
			defer root.Close()
			start := time.Now()
			touched := opened(t, name, func() {
				for range 3 {
					if _, err := root.ReadFile("/f", 1<<20); !errors.Is(err, ErrNotRegular) {
						t.Errorf("read: %v, want ErrNotRegular", err)
					}
					if _, err := root.Stat("/f"); err != nil {
						t.Error(err)
					}
				}
				if test.name != "a directory" {
					if _, err := root.ReadDir("/f", 10); err == nil {
						t.Error("it was listed")
					}
				}
			})
			if touched {
				t.Error("it was opened")
			}
			if took := time.Since(start); took > time.Second {
				t.Errorf("that took %v", took)
			}
			err = root.WriteFile("/f", []byte("ours"), 0o644, false)
			if test.name == "a directory" {
				if err == nil {
					t.Error("a directory was replaced")
				}
			} else if data, rerr := os.ReadFile(name); err != nil || rerr != nil || string(data) != "ours" {
				t.Errorf("write over it: %v, %v, %q", err, rerr, data)
			}
			if entries, _ := os.ReadDir(dir); len(entries) != 1 {
				t.Errorf("left: %v", entries)
			}
		})
	}
}

func TestAFileOfATerabyteIsTooLarge(t *testing.T) {
	i := newImage(t)
	i.write("etc/big", "")
	i.check(os.Truncate(i.path("etc/big"), 1<<40))
	start := time.Now()
	if _, err := i.root.ReadFile("/etc/big", 4<<20); !errors.Is(err, ErrTooLarge) {
		t.Errorf("%v, want ErrTooLarge", err)
	}
	// Comparing with what is there must not read it either.
	i.check(i.root.WriteFile("/etc/big", []byte("small"), 0o644, false))
	if took := time.Since(start); took > 50*time.Millisecond {
		t.Errorf("that took %v", took)
	}
	i.write("etc/exact", "12345")
	if data, err := i.root.ReadFile("/etc/exact", 5); err != nil || string(data) != "12345" {
		t.Errorf("%q, %v", data, err)
	}
	if _, err := i.root.ReadFile("/etc/exact", 4); !errors.Is(err, ErrTooLarge) {
		t.Errorf("%v, want ErrTooLarge", err)
	}
}

func TestADirectoryWithTooManyNamesIsAnError(t *testing.T) {
	i := newImage(t)
	for n := range 10 {
		i.write("etc/"+strconv.Itoa(n), "")
	}
	if names, err := i.root.ReadDir("/etc", 10); err != nil || len(names) != 10 {
		t.Errorf("%q, %v", names, err)
	}
	if names, err := i.root.ReadDir("/etc", 9); err == nil {
		t.Errorf("%q", names)
	}
}

// inMountNamespace runs fn where its mounts are nobody else's.
func inMountNamespace(t *testing.T, fn func()) {
	t.Helper()
	err := mountns.Do(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
			return err
		}
		if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
			return err
		}
		fn()
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestNoMountIsCrossed(t *testing.T) {
	i := newImage(t)
	for _, dir := range []string{"volume", "bound", "proc"} {
		i.check(os.Mkdir(i.path(dir), 0o755))
	}
	i.write("etc/file", "of the image")
	i.link("/volume", "link")
	i.link("/proc/1/root", "magic")
	inMountNamespace(t, func() {
		for _, m := range []struct {
			source, target, kind string
			flags                uintptr
		}{
			{"tmpfs", "volume", "tmpfs", 0},
			{i.host, "bound", "", unix.MS_BIND},
			{filepath.Join(i.host, "secret"), "etc/file", "", unix.MS_BIND},
			{"proc", "proc", "proc", 0},
		} {
			if err := unix.Mount(m.source, i.path(m.target), m.kind, m.flags, ""); err != nil {
				t.Errorf("%s: %v", m.target, err)
				return
			}
		}
		root, err := Open(i.dir) // as this namespace sees it
		if err != nil {
			t.Error(err)
			return
		}
		defer root.Close()
		for _, name := range []string{"/volume", "/link", "/bound/secret", "/etc/file", "/proc/version", "/proc/sys/kernel/hostname"} {
			if data, err := root.ReadFile(name, 1<<20); !errors.Is(err, unix.EXDEV) {
				t.Errorf("read %s: %q, %v, want EXDEV", name, data, err)
			}
			if _, err := root.Canonical(name); !errors.Is(err, unix.EXDEV) {
				t.Errorf("name of %s: %v, want EXDEV", name, err)
			}
		}
		for _, name := range []string{"/volume/x", "/link/x", "/bound/x", "/volume/sub/x", "/proc/sys/vm/swappiness", "/magic/x", "/etc/file"} {
			if err := root.WriteFile(name, []byte("61"), 0o644, true); err == nil {
				t.Errorf("%s was written", name)
			}
		}
		if _, err := root.ReadDir("/volume", 10); !errors.Is(err, unix.EXDEV) {
			t.Errorf("list: %v, want EXDEV", err)
		}
		if names, _ := os.ReadDir(i.path("volume")); len(names) != 0 {
			t.Errorf("in the volume: %v", names)
		}
	})
	i.hostUnchanged()
	i.noTemporaryFiles("etc")
}

func TestAFileBelongsToTheOwnerOfItsDirectory(t *testing.T) {
	i := newImage(t)
	i.check(os.Chown(i.path("etc"), 100000, 100001))
	old := unix.Umask(0o077)
	err := errors.Join(
		i.root.WriteFile("/etc/ld.so.cache", []byte("cache"), 0o644, false),
		i.root.WriteFile("/etc/ld.so.conf.d/x.conf", []byte("conf"), 0o600, true))
	unix.Umask(old)
	i.check(err)
	for name, mode := range map[string]fs.FileMode{"etc/ld.so.cache": 0o644, "etc/ld.so.conf.d/x.conf": 0o600, "etc/ld.so.conf.d": fs.ModeDir | 0o755} {
		var st unix.Stat_t
		i.check(unix.Lstat(i.path(name), &st))
		info, err := os.Lstat(i.path(name))
		i.check(err)
		if st.Uid != 100000 || st.Gid != 100001 || info.Mode() != mode {
			t.Errorf("%s: %d:%d %v, want 100000:100001 %v", name, st.Uid, st.Gid, info.Mode(), mode)
		}
	}
}

func TestOnlyTheLastDirectoryIsMade(t *testing.T) {
	i := newImage(t)
	if err := i.root.WriteFile("/etc/a/b/file", nil, 0o644, true); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
	if err := i.root.WriteFile("/etc/a/file", nil, 0o644, false); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
	i.link("/nowhere", "etc/dangling")
	if err := i.root.WriteFile("/etc/dangling/file", nil, 0o644, true); err == nil {
		t.Error("a link into nowhere became a directory")
	}
	if entries, _ := os.ReadDir(i.dir); len(entries) != 1 {
		t.Errorf("made: %v", entries)
	}
}

func TestTheSameContentIsNotWrittenAgain(t *testing.T) {
	i := newImage(t)
	inode := func() uint64 {
		var st unix.Stat_t
		i.check(unix.Lstat(i.path("etc/f"), &st))
		return st.Ino
	}
	i.check(i.root.WriteFile("/etc/f", []byte("one"), 0o644, false))
	first := inode()
	i.check(i.root.WriteFile("/etc/f", []byte("one"), 0o644, false))
	if inode() != first {
		t.Error("the file was replaced by an equal one")
	}
	for _, content := range []string{"two", "on", "one and more", ""} {
		i.check(i.root.WriteFile("/etc/f", []byte(content), 0o644, false))
		if data, err := os.ReadFile(i.path("etc/f")); err != nil || string(data) != content {
			t.Errorf("%q, %v, want %q", data, err, content)
		}
	}
}

func TestAnotherNameOfTheReplacedFileKeepsItsContent(t *testing.T) {
	i := newImage(t)
	i.write("etc/f", "old")
	i.check(os.Link(i.path("etc/f"), filepath.Join(i.host, "hard")))
	i.check(i.root.WriteFile("/etc/f", []byte("new"), 0o644, false))
	if data, err := os.ReadFile(filepath.Join(i.host, "hard")); err != nil || string(data) != "old" {
		t.Errorf("%q, %v", data, err)
	}
}

func TestAReaderSeesTheOldFileOrTheNewOne(t *testing.T) {
	i := newImage(t)
	contents := [][]byte{bytes.Repeat([]byte("a"), 300<<10), bytes.Repeat([]byte("b"), 200<<10)}
	i.check(i.root.WriteFile("/etc/f", contents[0], 0o644, false))
	var stop atomic.Bool
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			for !stop.Load() {
				data, err := os.ReadFile(i.path("etc/f"))
				if err != nil || !slices.ContainsFunc(contents, func(c []byte) bool { return bytes.Equal(c, data) }) {
					t.Errorf("%d bytes, %v", len(data), err)
					return
				}
			}
		})
	}
	for n := range 100 {
		if err := i.root.WriteFile("/etc/f", contents[n%2], 0o644, false); err != nil {
			t.Error(err)
			break
		}
	}
	stop.Store(true)
	wg.Wait()
	i.noTemporaryFiles("etc")
}

func TestAFullFileSystemKeepsTheOldFile(t *testing.T) {
	dir := t.TempDir()
	inMountNamespace(t, func() {
		if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=64k"); err != nil {
			t.Error(err)
			return
		}
		root, err := Open(dir)
		if err != nil {
			t.Error(err)
			return
		}
		defer root.Close()
		if err := root.WriteFile("/f", []byte("old"), 0o644, false); err != nil {
			t.Error(err)
		}
		if err := root.WriteFile("/f", make([]byte, 1<<20), 0o644, false); !errors.Is(err, unix.ENOSPC) {
			t.Errorf("%v, want ENOSPC", err)
		}
		if data, err := os.ReadFile(dir + "/f"); err != nil || string(data) != "old" {
			t.Errorf("%q, %v", data, err)
		}
		if entries, _ := os.ReadDir(dir); len(entries) != 1 {
			t.Errorf("left: %v", entries)
		}
		if err := unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
			t.Error(err)
		}
		if err := root.WriteFile("/f", []byte("new"), 0o644, false); !errors.Is(err, unix.EROFS) {
			t.Errorf("%v, want EROFS", err)
		}
	})
}

// flip exchanges two names over and over until stop is called, as a second
// container that shares the directory would (CVE-2026-24260).
func flip(t *testing.T, a, b string) (stop func()) {
	t.Helper()
	var done atomic.Bool
	var wg sync.WaitGroup
	wg.Go(func() {
		for !done.Load() {
			if err := unix.Renameat2(unix.AT_FDCWD, a, unix.AT_FDCWD, b, unix.RENAME_EXCHANGE); err != nil && !errors.Is(err, unix.ENOENT) {
				t.Error(err)
				return
			}
		}
	})
	return func() { done.Store(true); wg.Wait() }
}

func TestANameThatIsExchangedAllTheTimeNeverLeadsOut(t *testing.T) {
	const rounds = 2000
	for _, target := range []string{"absolute", "relative", "parent"} {
		t.Run("a directory and a link of kind "+target, func(t *testing.T) {
			i := newImage(t)
			i.write("etc/dir/secret", "harmless")
			i.check(os.Symlink(map[string]string{
				"absolute": i.host, "relative": "../../host", "parent": "../../../../../../../../" + i.host,
			}[target], i.path("etc/other")))
			stop := flip(t, i.path("etc/dir"), i.path("etc/other"))
			read, written := 0, 0
			for n := range rounds {
				if data, err := i.root.ReadFile("/etc/dir/secret", 1<<20); err == nil {
					if read++; string(data) != "harmless" {
						t.Fatalf("read %q", data)
					}
				}
				if err := i.root.WriteFile("/etc/dir/f", []byte(strconv.Itoa(n)), 0o644, n%2 == 0); err == nil {
					written++
				}
				if name, err := i.root.Canonical("/etc/dir/secret"); err == nil && !strings.HasPrefix(name, "/etc/") {
					t.Fatalf("is called %q", name)
				}
			}
			stop()
			i.hostUnchanged()
			if read == 0 || written == 0 {
				t.Errorf("%d reads and %d writes of %d went well: the race was none", read, written, rounds)
			}
		})
	}
	t.Run("a file and a link", func(t *testing.T) {
		i := newImage(t)
		i.write("etc/f", "harmless")
		i.check(os.Symlink("../../host/secret", i.path("etc/other")))
		stop := flip(t, i.path("etc/f"), i.path("etc/other"))
		for n := range rounds {
			if data, err := i.root.ReadFile("/etc/f", 1<<20); err == nil && string(data) == secret {
				t.Fatalf("read %q", data)
			}
			_ = i.root.WriteFile("/etc/f", []byte(strconv.Itoa(n)), 0o644, false)
		}
		stop()
		i.hostUnchanged()
	})
	t.Run("a file and a device", func(t *testing.T) {
		i := newImage(t)
		i.write("etc/f", "harmless")
		// No driver has this number: opening it gives ENXIO, which a caller would see.
		i.check(unix.Mknod(i.path("etc/other"), unix.S_IFCHR|0o666, int(unix.Mkdev(511, 77))))
		stop := flip(t, i.path("etc/f"), i.path("etc/other"))
		for range rounds {
			if _, err := i.root.ReadFile("/etc/f", 1<<20); errors.Is(err, unix.ENXIO) {
				t.Fatal("the device was opened")
			}
		}
		stop()
	})
}

func TestTheHostsOwnRootIsRecognised(t *testing.T) {
	root, err := Open("/")
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	if !root.IsHost() {
		t.Error("/ is not recognised")
	}
	if newImage(t).root.IsHost() {
		t.Error("a directory is taken for it")
	}
	if got, err := root.Canonical("/proc/.."); err == nil && got != "/" {
		t.Errorf("the root is called %q", got)
	}
}

func TestOpenRefusesWhatIsNoDirectory(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{file, file + "-missing"} {
		if root, err := Open(name); err == nil {
			root.Close()
			t.Errorf("%s was opened", name)
		}
	}
}

func TestDescriptorsAreClosed(t *testing.T) {
	i := newImage(t)
	i.write("etc/f", "x")
	count := func() int {
		entries, err := os.ReadDir("/proc/self/fd")
		i.check(err)
		return len(entries)
	}
	before := count()
	for n := range 50 {
		_, _ = i.root.ReadFile("/etc/f", 10)
		_, _ = i.root.ReadFile("/etc", 10)
		_, _ = i.root.ReadFile("/none", 10)
		_, _ = i.root.ReadDir("/etc", 10)
		_, _ = i.root.Stat("/etc")
		_, _ = i.root.Canonical("/etc/f")
		_ = i.root.WriteFile("/etc/f", []byte(strconv.Itoa(n)), 0o644, true)
		_ = i.root.WriteFile("/etc", nil, 0o644, true)
	}
	if after := count(); after > before {
		t.Errorf("%d descriptors before, %d after", before, after)
	}
}

func (i *image) links(own string) *Links {
	l := i.root.Links(own)
	i.t.Cleanup(l.Close)
	return l
}

func TestALinkIsMadeWhereNothingIs(t *testing.T) {
	const own, target = "/opt/own", "/opt/own/bin/x"
	for _, tc := range []struct {
		name string
		make func(i *image)
		can  bool // what CanMake says beforehand
		err  error
		want string // the link afterwards; what was there before where it is empty
	}{
		{name: "nothing", make: func(i *image) { i.check(os.Mkdir(i.path("d"), 0o755)) }, can: true, want: target},
		{name: "no directories", make: func(*image) {}, can: true, want: target},
		{name: "a link to the same", make: func(i *image) { i.link(target, "d/e/x") }, can: true, want: target},
		{name: "a link to another place in the directory", make: func(i *image) { i.link("/opt/own/y", "d/e/x") }, can: true, want: target},
		{name: "a relative link into the directory", make: func(i *image) { i.link("../../opt/own/y", "d/e/x") }, can: true, want: target},
		{name: "a link to the directory itself", make: func(i *image) { i.link("/opt/own", "d/e/x") }, err: fs.ErrExist},
		{name: "a link elsewhere", make: func(i *image) { i.link("/opt/owner/y", "d/e/x") }, err: fs.ErrExist},
		{name: "a file", make: func(i *image) { i.write("d/e/x", "theirs") }, err: fs.ErrExist},
		{name: "a directory", make: func(i *image) { i.check(os.MkdirAll(i.path("d/e/x"), 0o755)) }, err: fs.ErrExist},
		{name: "a file above", make: func(i *image) { i.write("d", "theirs") }, err: unix.ENOTDIR},
		{name: "a link out of the image above", make: func(i *image) { i.link(i.host, "d") }, can: true, err: unix.EEXIST},
		{name: "a link that climbs above", make: func(i *image) { i.link("../host", "d") }, can: true, err: unix.EEXIST},
	} {
		t.Run(tc.name, func(t *testing.T) {
			i := newImage(t)
			tc.make(i)
			before, _ := os.Readlink(i.path("d/e/x"))
			links := i.links(own)
			if can := links.CanMake("/d/e/x"); can != tc.can {
				t.Errorf("can be made: %v", can)
			}
			if err := links.Make("/d/e/x", target); !errors.Is(err, tc.err) {
				t.Errorf("%v, want %v", err, tc.err)
			}
			want := tc.want
			if want == "" {
				want = before
			}
			if got, _ := os.Readlink(i.path("d/e/x")); got != want {
				t.Errorf("link to %q, want %q", got, want)
			}
			i.hostUnchanged()
		})
	}
	t.Run("it belongs to the owner of its directory", func(t *testing.T) {
		i := newImage(t)
		i.check(os.Chown(i.path("etc"), 1234, 5678))
		i.check(i.links(own).Make("/etc/a/b/x", target))
		for _, name := range []string{"etc/a", "etc/a/b", "etc/a/b/x"} {
			var st unix.Stat_t
			i.check(unix.Lstat(i.path(name), &st))
			if st.Uid != 1234 || st.Gid != 5678 {
				t.Errorf("%s belongs to %d:%d", name, st.Uid, st.Gid)
			}
		}
	})
	t.Run("everybody can follow it whatever the umask", func(t *testing.T) {
		i := newImage(t)
		i.check(os.Chmod(i.path("etc"), 0o755|os.ModeSetgid))
		old := unix.Umask(0o077)
		defer unix.Umask(old)
		i.check(i.links(own).Make("/etc/a/b/x", target))
		for _, name := range []string{"etc/a", "etc/a/b"} {
			if info, err := os.Stat(i.path(name)); err != nil || info.Mode() != 0o755|os.ModeDir {
				t.Errorf("%s: %v (%v)", name, info.Mode(), err)
			}
		}
	})
	t.Run("no mount is crossed", func(t *testing.T) {
		i := newImage(t)
		i.check(unix.Mount(i.host, i.path("etc"), "", unix.MS_BIND, ""))
		t.Cleanup(func() { _ = unix.Unmount(i.path("etc"), unix.MNT_DETACH) })
		if err := i.links(own).Make("/etc/x", target); !errors.Is(err, unix.EXDEV) {
			t.Errorf("%v", err)
		}
		i.hostUnchanged()
	})
}
