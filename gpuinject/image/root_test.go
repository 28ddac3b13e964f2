package image

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/openat"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testtree"
)

const secret = "a file of the host"

// testImage is a root file system beside a directory of the host that nothing in the image may
// reach.
type testImage struct {
	*Root
	t         testing.TB
	dir, host string
}

func newImage(t testing.TB) *testImage {
	t.Helper()
	base := t.TempDir()
	i := &testImage{t: t, dir: filepath.Join(base, "rootfs"), host: filepath.Join(base, "host")}
	mkdir(t, i.path("etc"))
	write(t, filepath.Join(i.host, "secret"), secret)
	i.Root = openRoot(t, i.dir)
	return i
}

// reopen opens the root again, as for the next container: nothing is known about it.
func (i *testImage) reopen() {
	i.t.Helper()
	check(i.t, i.Close())
	root, err := Open(i.dir)
	check(i.t, err)
	*i.Root = *root
}

func (i *testImage) path(name string) string    { return filepath.Join(i.dir, name) }
func (i *testImage) write(name, content string) { i.t.Helper(); write(i.t, i.path(name), content) }
func (i *testImage) link(target, name string)   { i.t.Helper(); symlink(i.t, target, i.path(name)) }

var check = testtree.Check

// unchanged fails the test if the host's directory holds anything new, or a temporary file is left
// in the image's /etc.
func (i *testImage) unchanged() {
	i.t.Helper()
	entries, err := os.ReadDir(i.host)
	check(i.t, err)
	if data := read(i.t, filepath.Join(i.host, "secret")); len(entries) != 1 || data != secret {
		i.t.Errorf("the host's directory has changed: %v, %q", entries, data)
	}
	entries, err = os.ReadDir(i.path("etc"))
	check(i.t, err)
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), ".") {
			i.t.Errorf("%s is left in the image", e.Name())
		}
	}
}

func TestALinkNeverLeadsOutOfTheRoot(t *testing.T) {
	for _, target := range []string{
		"HOST/secret", "../../../../../../../..HOST/secret", "../../host/secret",
		"/proc/1/rootHOST/secret", "/proc/self/rootHOST/secret", "/proc/self/cwd/../host/secret",
	} {
		t.Run(target, func(t *testing.T) {
			i := newImage(t)
			target := strings.ReplaceAll(target, "HOST", i.host)
			i.link(target, "etc/file")
			i.link(filepath.Dir(target), "etc/dir")
			for _, name := range []string{"/etc/file", "/etc/dir/secret"} {
				if data, err := i.readFile(name, 1<<20); err == nil || i.IsFile(name) {
					t.Errorf("%s: read %q", name, data)
				}
			}
			if names, err := i.readDir("/etc/dir", 100); err == nil {
				t.Errorf("listed %q", names)
			}
			for _, err := range []error{
				i.CanWriteFile("/etc/dir/made"), i.WriteFile("/etc/dir/made", nil),
				i.CanMakeLink("/etc/dir/made", "/own"), i.MakeLink("/etc/dir/made", "/own/x", "/own"),
			} {
				if err == nil {
					t.Error("something was made through the link")
				}
			}
			// The name itself is replaced, never followed.
			check(t, i.CanWriteFile("/etc/file"))
			check(t, i.WriteFile("/etc/file", []byte("ours")))
			if info, err := os.Lstat(i.path("etc/file")); err != nil || !info.Mode().IsRegular() {
				t.Errorf("is %v, %v", info, err)
			}
			i.unchanged()
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
	i.link("/mnt/volume/nvidia", "usr/local/nvidia")
	i.link("../../mnt/volume", "usr/local/up")
	i.link("/usr/local/nvidia/deeper", "etc/chain")
	i.link("../../../../../../host", "etc/out")
	i.link("none/../../there", "etc/through-nothing")
	for name, want := range map[string]string{
		"/":                           "/",
		"/../..":                      "/",
		"/lib":                        "/usr/lib",
		"/lib/libc.so.6":              "/usr/lib/libc.so.6",
		"lib/libc.so.6":               "/usr/lib/libc.so.6",
		"/abs/libc.so.6":              "/usr/lib/libc.so.6",
		"/usr/up/libc.so.6":           "/usr/lib/libc.so.6",
		"/etc/libc":                   "/usr/lib/libc.so.6",
		"/../../lib/libc.so.6":        "/usr/lib/libc.so.6",
		"/etc/../lib//libc.so.6":      "/usr/lib/libc.so.6",
		"/lib/x/new":                  "/usr/lib/x/new",
		"/usr/local/nvidia":           "/mnt/volume/nvidia",
		"/usr/local/nvidia/lib64":     "/mnt/volume/nvidia/lib64",
		"/usr/local/up/made":          "/mnt/volume/made",
		"/usr/local/up/../new":        "/usr/local/new",
		"/etc/chain/file":             "/mnt/volume/nvidia/deeper/file",
		"/etc/out/file":               "/host/file",
		"/etc/through-nothing/x":      "/there/x",
		"/none/of/these":              "/none/of/these",
		"/etc/../lib/../lib/new":      "/usr/lib/new",
		"/usr/lib/libc.so.6/not/here": "/usr/lib/libc.so.6/not/here",
	} {
		if got, err := i.Target(name); err != nil || got != want {
			t.Errorf("%s is made at %s (%v), want %s", name, got, err, want)
		}
		if data, err := i.readFile(name, 100); (err == nil && string(data) == "libc") != (want == "/usr/lib/libc.so.6") {
			t.Errorf("%s: read %q, %v", name, data, err)
		}
	}
	for name, at := range map[string]string{"/abs/new": "usr/lib/new", "/../../../escaped": "escaped"} {
		check(t, i.WriteFile(name, []byte("x")))
		if got := read(t, i.path(at)); got != "x" {
			t.Errorf("%s: got %q", name, got)
		}
	}
}

func TestALookUpIsBounded(t *testing.T) {
	i := newImage(t)
	i.link("b", "etc/a")
	i.link("a", "etc/b")
	i.link("/etc/dir", "etc/dir")
	i.write("end", "end")
	i.link("/end", "etc/l0")
	deep := strings.Repeat("x/", 100)
	mkdir(t, i.path(deep))
	i.write(deep+"end", "end")
	for n := 1; n < 60; n++ {
		i.link("l"+strconv.Itoa(n-1), "etc/l"+strconv.Itoa(n))
		i.link(fmt.Sprintf("/%s%d/%s", deep, n+1, strings.Repeat("y/", 100)), deep+strconv.Itoa(n))
	}
	i.link("/"+deep+deep+"end", "etc/three-hundred")
	i.link("/"+deep+"end", "etc/hundred")
	for name, ok := range map[string]bool{
		"/etc/l39": true, "/etc/l40": false, "/etc/a": false, "/etc/dir/file": false,
		"/etc/hundred": true, "/etc/three-hundred/" + deep: false, "/" + deep + "20": false,
	} {
		start := testtree.ProcessorTime(t)
		_, err := i.Target(name)
		if (err == nil) != ok || i.IsFile(name) != ok {
			t.Errorf("%.20s: %v", name, err)
		}
		if ok {
			continue
		}
		_, readErr := i.readFile(name, 100)
		for _, err := range []error{
			err, readErr, i.CanWriteFile(name + "/new"), i.WriteFile(name+"/new", nil),
			i.CanMakeLink(name+"/new", "/own"), i.MakeLink(name+"/new", "/own/x", "/own"),
		} {
			if !errors.Is(err, errTooManyLinks) {
				t.Errorf("%.20s: %v", name, err)
			}
		}
		if took := testtree.ProcessorTime(t) - start; took > time.Second {
			t.Errorf("%.20s took %v", name, took)
		}
	}
}

// Each of these look-ups is within the limits of one, and a container can have any number of
// mounts.
func TestT10LookUpsTogetherAreBounded(t *testing.T) {
	i := newImage(t)
	deep := strings.Repeat("x/", maxComponents-20)
	mkdir(t, i.path(deep))
	i.link("/"+deep, "a")
	for n := range 200 {
		if _, err := i.Target("/a/" + strconv.Itoa(n)); errors.Is(err, errTooManyLinks) {
			if _, err := i.Target("/" + deep); n < 20 || err != nil {
				t.Errorf("%d look-ups, and then of a path without links %v", n, err)
			}
			return
		}
	}
	t.Error("200 look-ups through 236 directories each")
}

func TestMagicLinksLeadNowhere(t *testing.T) {
	root := openRoot(t, "/proc")
	for _, name := range []string{"/root/etc/passwd", "/cwd/root_test.go", "/exe", "/fd/0"} {
		name = strconv.Itoa(os.Getpid()) + name
		if data, err := root.readFile(name, 1<<20); err == nil || root.IsFile(name) {
			t.Errorf("%s: read %q", name, data)
		}
	}
	if err := root.WriteFile(strconv.Itoa(os.Getpid())+"/cwd/created", []byte("x")); err == nil {
		t.Error("a file was written")
	}
	if err := os.Remove("created"); err == nil {
		t.Error("a file was written through a magic link")
	}
}

// opened runs fn and reports whether anything opened name meanwhile; O_PATH does not.
func opened(t *testing.T, name string, fn func()) bool {
	t.Helper()
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	check(t, err)
	defer unix.Close(fd)
	_, err = unix.InotifyAddWatch(fd, name, unix.IN_OPEN)
	check(t, err)
	fn()
	n, _ := unix.Read(fd, make([]byte, 4096))
	return n > 0
}

func TestWhatIsNoRegularFileIsNeverOpened(t *testing.T) {
	node := func(mode uint32, major, minor uint32) func(string) error {
		return func(name string) error { return unix.Mknod(name, mode|0o666, int(unix.Mkdev(major, minor))) }
	}
	for kind, make := range map[string]func(string) error{
		"a FIFO without a writer": func(name string) error { return unix.Mkfifo(name, 0o666) },
		"the watchdog":            node(unix.S_IFCHR, 10, 130),
		"kmsg":                    node(unix.S_IFCHR, 1, 11),
		"an endless device":       node(unix.S_IFCHR, 1, 5),
		"a block device":          node(unix.S_IFBLK, 7, 250),
		"a directory":             func(name string) error { return os.Mkdir(name, 0o755) },
		"a socket": func(name string) error {
			l, err := net.ListenUnix("unix", &net.UnixAddr{Name: name, Net: "unix"})
			if err == nil {
				l.SetUnlinkOnClose(false)
				l.Close()
			}
			return err
		},
	} {
		t.Run(kind, func(t *testing.T) {
			// The path of a socket has a limit that t.TempDir is beyond.
			dir, err := os.MkdirTemp("", "r")
			check(t, err)
			defer os.RemoveAll(dir)
			name := filepath.Join(dir, "f")
			check(t, make(name))
			root := openRoot(t, dir)
			start := testtree.ProcessorTime(t)
			if opened(t, name, func() {
				if _, err := root.readFile("/f", 1<<20); !errors.Is(err, openat.ErrNotRegular) || root.IsFile("/f") {
					t.Errorf("read: %v, want ErrNotRegular", err)
				}
				if _, err := root.readDir("/f", 10); err == nil && kind != "a directory" {
					t.Error("it was listed")
				}
			}) && kind != "a directory" {
				t.Error("it was opened")
			}
			if took := testtree.ProcessorTime(t) - start; took > time.Second {
				t.Errorf("that took %v", took)
			}
			can, err := root.CanWriteFile("/f"), root.WriteFile("/f", []byte("ours"))
			if kind == "a directory" {
				if can == nil || err == nil {
					t.Error("a directory was replaced")
				}
			} else if can != nil || err != nil || read(t, name) != "ours" {
				t.Errorf("write over it: %v, %v", can, err)
			}
			if entries, _ := os.ReadDir(dir); len(entries) != 1 {
				t.Errorf("left: %v", entries)
			}
		})
	}
}

func TestWhatIsTooLargeIsNotRead(t *testing.T) {
	i := newImage(t)
	sparse(t, i.path("etc/big"), 1<<40)
	start := testtree.ProcessorTime(t)
	if _, err := i.readFile("/etc/big", 4<<20); !errors.Is(err, openat.ErrTooLarge) {
		t.Errorf("%v, want ErrTooLarge", err)
	}
	// Comparing with what is there must not read it either.
	check(t, i.WriteFile("/etc/big", []byte("small")))
	if took := testtree.ProcessorTime(t) - start; took > time.Second {
		t.Errorf("that took %v", took)
	}
	i.write("etc/exact", "12345")
	if data, err := i.readFile("/etc/exact", 5); err != nil || string(data) != "12345" {
		t.Errorf("%q, %v", data, err)
	}
	if _, err := i.readFile("/etc/exact", 4); !errors.Is(err, openat.ErrTooLarge) {
		t.Errorf("%v, want ErrTooLarge", err)
	}
	if names, err := i.readDir("/etc", 2); err != nil || len(names) != 2 {
		t.Errorf("%q, %v", names, err)
	}
	if names, err := i.readDir("/etc", 1); err == nil {
		t.Errorf("%q", names)
	}
}

// inMountNamespace runs fn on a thread whose mounts no other process sees.
func inMountNamespace(t *testing.T, fn func()) {
	t.Helper()
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlock: the thread ends with its namespace
		err := errors.Join(unix.Unshare(unix.CLONE_NEWNS), unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""))
		if err == nil {
			fn()
		}
		done <- err
	}()
	check(t, <-done)
}

func TestNoMountIsCrossed(t *testing.T) {
	i := newImage(t)
	for _, dir := range []string{"volume", "bound", "proc"} {
		mkdir(t, i.path(dir))
	}
	i.write("etc/file", "of the image")
	i.link("/volume", "link")
	i.link("/proc/1/root", "magic")
	inMountNamespace(t, func() {
		err := errors.Join(
			unix.Mount("tmpfs", i.path("volume"), "tmpfs", 0, ""),
			unix.Mount(i.host, i.path("bound"), "", unix.MS_BIND, ""),
			unix.Mount(filepath.Join(i.host, "secret"), i.path("etc/file"), "", unix.MS_BIND, ""),
			unix.Mount("proc", i.path("proc"), "proc", 0, ""))
		root, openErr := Open(i.dir) // as this namespace sees it
		if err := errors.Join(err, openErr); err != nil {
			t.Error(err)
			return
		}
		defer root.Close()
		for _, name := range []string{"/volume", "/link", "/bound/secret", "/etc/file", "/proc/version", "/proc/sys/kernel/hostname"} {
			if data, err := root.readFile(name, 1<<20); !errors.Is(err, unix.EXDEV) {
				t.Errorf("read %s: %q, %v, want EXDEV", name, data, err)
			}
		}
		for _, name := range []string{"/volume/x", "/link/x", "/bound/x", "/volume/sub/x", "/proc/sys/vm/swappiness", "/magic/x"} {
			for _, err := range []error{
				root.CanWriteFile(name), root.WriteFile(name, []byte("61")),
				root.CanMakeLink(name, "/own"), root.MakeLink(name, "/own/x", "/own"),
			} {
				if !errors.Is(err, unix.EXDEV) {
					t.Errorf("%s: %v, want EXDEV", name, err)
				}
			}
		}
		if err := root.WriteFile("/etc/file", []byte("61")); err == nil {
			t.Error("a file that is a mount was replaced")
		}
		if _, err := root.readDir("/volume", 10); !errors.Is(err, unix.EXDEV) {
			t.Errorf("list: %v, want EXDEV", err)
		}
		if names, _ := os.ReadDir(i.path("volume")); len(names) != 0 {
			t.Errorf("in the volume: %v", names)
		}
	})
	i.unchanged()
}

// flip exchanges two names until stop is called, like a second container that shares the directory
// (CVE-2026-24260).
func flip(t *testing.T, a, b string) (stop func()) {
	t.Helper()
	var done atomic.Bool
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for !done.Load() {
			if err := unix.Renameat2(unix.AT_FDCWD, a, unix.AT_FDCWD, b, unix.RENAME_EXCHANGE); err != nil && !errors.Is(err, unix.ENOENT) {
				t.Error(err)
				return
			}
		}
	}()
	return func() { done.Store(true); <-ended }
}

func TestANameThatIsExchangedAllTheTimeNeverLeadsOut(t *testing.T) {
	device := func(i *testImage) {
		// No driver has this number: opening it gives ENXIO, which a caller would see.
		check(t, unix.Mknod(i.path("etc/other"), unix.S_IFCHR|0o666, int(unix.Mkdev(511, 77))))
	}
	to := func(target string) func(i *testImage) {
		return func(i *testImage) { i.link(strings.ReplaceAll(target, "HOST", i.host), "etc/other") }
	}
	for _, test := range []struct {
		name, exchanged string
		other           func(i *testImage)
	}{
		{"a directory and an absolute link", "etc/dir", to("HOST")},
		{"a directory and a relative link", "etc/dir", to("../../host")},
		{"a directory and a link that climbs", "etc/dir", to("../../../../../../../..HOST")},
		{"a file and a link", "etc/dir/secret", to("../../host/secret")},
		{"a file and a device", "etc/dir/secret", device},
	} {
		t.Run(test.name, func(t *testing.T) {
			i := newImage(t)
			i.write("etc/dir/secret", "harmless")
			test.other(i)
			stop := flip(t, i.path(test.exchanged), i.path("etc/other"))
			defer stop()
			done := 0
			for n := range 300 {
				i.reopen()
				data, err := i.readFile("/etc/dir/secret", 1<<20)
				if err == nil {
					done++
				}
				if err == nil && string(data) != "harmless" || errors.Is(err, unix.ENXIO) {
					t.Fatalf("read %q, %v", data, err)
				}
				_ = i.WriteFile("/etc/dir/f", []byte(strconv.Itoa(n)))
				_ = i.MakeLink("/etc/dir/sub"+strconv.Itoa(n)+"/l", "/own/x", "/own")
			}
			if stop(); done == 0 {
				t.Error("no read succeeded: there was no race")
			}
			i.unchanged()
		})
	}
}

// Callers clean names and follow links themselves; open stays in the root whatever they pass.
func TestOpen(t *testing.T) {
	if !openRoot(t, "/").IsHost() || newImage(t).IsHost() {
		t.Error("the host's own root is not told from another directory")
	}
	file := filepath.Join(t.TempDir(), "file")
	write(t, file, "")
	for name, want := range map[string]error{file: unix.ENOTDIR, file + "-missing": fs.ErrNotExist} {
		if _, err := Open(name); !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", name, err, want)
		}
	}
}

// Otherwise a container would start without what is not put into the host's root.
func TestWhetherARootIsTheHostsCannotBeFoundOut(t *testing.T) {
	r, err := Open(t.TempDir())
	check(t, err)
	check(t, r.Close())
	if !r.IsHost() || r.Err() == nil {
		t.Errorf("host's: %v, error: %v", r.IsHost(), r.Err())
	}
}

func TestDescriptorsAreClosed(t *testing.T) {
	i := newImage(t)
	i.write("etc/f", "x")
	i.link("f", "etc/l")
	i.link("loop", "etc/loop")
	count := func() int {
		entries, err := os.ReadDir("/proc/self/fd")
		check(t, err)
		return len(entries)
	}
	before := count()
	for n := range 50 {
		i.reopen()
		for _, name := range []string{"/etc/f", "/etc", "/none", "/etc/l", "/etc/loop", "/etc/f/x", "/n" + strconv.Itoa(n) + "/x"} {
			_, _ = i.readFile(name, 10)
			_, _ = i.readDir(name, 10)
			_, _ = i.Target(name)
			_, _ = i.CanWriteFile(name), i.CanMakeLink(name, "/own")
			_, _ = i.MakeLink(name, "/own/x", "/own"), i.WriteFile(name, []byte(strconv.Itoa(n)))
		}
		_ = i.Inspect("580.95.05")
	}
	i.reopen()
	if after := count(); after > before {
		t.Errorf("%d descriptors before, %d after", before, after)
	}
}
