package images_test

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/images"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// start imports an image into a containerd of the test's own and gives a
// function that runs a shell command in it and returns what it prints.
func start(t *testing.T, ref, path string) func(script string) string {
	t.Helper()
	e := testenv.Start(t, testenv.Options{})
	e.Import(t, path)
	return func(script string) string {
		t.Helper()
		return e.MustRun(t, testenv.RunOptions{
			Image: ref, Runtime: testenv.StockRuntime, Args: []string{"/bin/sh", "-c", script},
		})
	}
}

func build(t *testing.T, name string) string {
	t.Helper()
	path, err := images.Build(name)
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// check compares the output of a command with lines that it has to hold.
func check(t *testing.T, run func(string) string, script string, want ...string) {
	t.Helper()
	got := run(script)
	for _, line := range want {
		if !strings.Contains(got, line) {
			t.Errorf("%s: got %q, which lacks %q", script, got, line)
		}
	}
}

func TestBusybox(t *testing.T) {
	run := start(t, images.Ref("busybox"), build(t, "busybox"))
	check(t, run, "ls / /lib 2>&1; id -un 1000 2>&1; cat /etc/passwd", "ls: /lib: No such file or directory", "tester:x:1000")
	check(t, run, "/test/opendev /dev/null /nope", "/dev/null OK\n/nope ENOENT\n")
}

// Debian can do what its users do: list the cache, load libraries from Python,
// compile, and install a package that runs ldconfig.
func TestDebian12(t *testing.T) {
	run := start(t, images.Ref("debian12"), build(t, "debian12"))
	check(t, run, "cat /etc/debian_version; ldconfig -p | head -1; ldconfig -p | grep libc.so", "12.", "libs found in cache", "libc.so.6 (libc6")
	check(t, run, "python3 -c 'import ctypes, ctypes.util; print(ctypes.util.find_library(\"c\"), ctypes.CDLL(\"libc.so.6\").getpid() > 0)'", "libc.so.6 True")
	check(t, run, "cd /tmp && echo 'int main(void){return 3;}' >a.c && gcc -o a a.c && ./a; echo $?", "3")
	check(t, run, "/test/dlopen -s foo libfoo.so.1; dpkg -i "+images.LibfooDeb+" >/dev/null 2>/tmp/err || cat /tmp/err; /test/dlopen -s foo libfoo.so.1; ldconfig -p | grep libfoo",
		"libfoo.so.1 libfoo.so.1: cannot open", "libfoo.so.1 OK /lib/", "foo=12", "libfoo.so.1 (libc6")
	check(t, run, "/test/opendev /dev/null; /test/cucount || true; ls -ld /tmp /root; stat -c '%A %U:%G' /usr/bin/passwd /var/mail; ls -i /usr/bin/perl /usr/bin/perl5*",
		"/dev/null OK", "libcuda libcuda.so.1: cannot open", "drwxrwxrwt", "drwx------", "-rwsr-xr-x root:root", "drwxrwsr-x root:mail")
}

func TestGlibcNoCache(t *testing.T) {
	run := start(t, images.Ref("glibc-nocache"), build(t, "glibc-nocache"))
	check(t, run, "ls /etc/ld.so.cache /sbin/ldconfig 2>&1; /test/dlopen libc.so.6 libm.so.6 libresolv.so.2; /test/opendev /dev/zero",
		"ls: /etc/ld.so.cache: No such file", "ls: /sbin/ldconfig: No such file", "libc.so.6 OK /lib/", "libm.so.6 OK /lib/", "libresolv.so.2 libresolv.so.2: cannot open", "/dev/zero OK")
}

func TestGlibcHwcaps(t *testing.T) {
	run := start(t, images.Ref("glibc-hwcaps"), build(t, "glibc-hwcaps"))
	check(t, run, "ldconfig -p", "libfoo.so.1 (libc6,x86-64, hwcap: \"x86-64-v3\")", "libfoo.so.1 (libc6,x86-64, hwcap: \"x86-64-v2\")", "libcuda.so.1 (libc6,x86-64, hwcap:")
	check(t, run, "/test/dlopen -s foo libfoo.so.1; /test/dlopen -s cuDriverGetVersion libcuda.so.1", "libfoo.so.1 OK /lib/", fmt.Sprintf("cuDriverGetVersion=%d", images.HostileValue))
}

func TestUsrLib64(t *testing.T) {
	run := start(t, images.Ref("usrlib64"), build(t, "usrlib64"))
	check(t, run, "ls -d /etc/debian_version /usr/lib/*/ 2>&1; readlink /lib64; /test/dlopen -s foo libc.so.6 libfoo.so.1",
		"/etc/debian_version: No such file", "usr/lib64", "libc.so.6 OK /lib64/libc.so.6", "libfoo.so.1 OK /lib64/libfoo.so.1 foo=1")
	// A later ldconfig keeps it working.
	check(t, run, "ldconfig && /test/dlopen libfoo.so.1", "libfoo.so.1 OK")
}

func TestMusl(t *testing.T) {
	run := start(t, images.Ref("musl"), build(t, "musl"))
	check(t, run, "/test/dlopen libnope.so; ls /etc/ld.so.cache 2>&1; /test/cucount; true", "libnope.so Error loading shared library", "No such file", "libcuda Error loading")
}

func TestLarge(t *testing.T) {
	run := start(t, images.Ref("large"), build(t, "large"))
	check(t, run, "ldconfig -p | grep -c libtest; /test/dlopen -s foo libtest4999.so.1", fmt.Sprintf("%d\n", images.LargeLibraries), "libtest4999.so.1 OK /usr/lib/large/libtest4999.so.1 foo=1")
}

func TestCompat(t *testing.T) {
	c := images.Compat{Version: "610.43.02", Note: images.FwdNote("13.5", 535, 580), Value: 13050}
	path, err := c.Build()
	if err != nil {
		t.Fatal(err)
	}
	run := start(t, images.Ref(c.Name()), path)
	check(t, run, "readlink /usr/local/cuda; /test/dlopen -s cuDriverGetVersion libcuda.so.1 /usr/local/cuda/compat/libcuda.so.1",
		"/usr/local/cuda-13.5\n", "libcuda.so.1 libcuda.so.1: cannot open", "/usr/local/cuda/compat/libcuda.so.1 OK", "cuDriverGetVersion=13050")
	note := run("cat /usr/local/cuda/compat/libcuda.so.610.43.02")
	if !strings.Contains(note, "NVIDIA Corporation\x00") || !strings.Contains(note, *c.Note) {
		t.Error("the library has no note")
	}

	without := images.Compat{Version: "610.43.02", Value: 13050}
	if without.Name() == c.Name() {
		t.Error("two images with one name")
	}
	if path, err = without.Build(); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(data, []byte("NVIDIA Corporation")) {
		t.Error("a library that should have no note has one")
	}
}

// table is a hostile image with an entry of each kind.
func table() []images.File {
	return []images.File{
		images.Text("etc/plain", 0o4755, "content"),
		images.Symlink("etc/ld.so.cache", "/proc/1/root/etc/shadow"),
		images.Link("etc/second", "etc/plain"),
		images.FIFO("etc/fifo"),
		images.Char("etc/null", 0o666, 1, 3),
		images.Block("etc/disk", 0o600, 7, 200),
		images.Sparse("etc/zeros", 1<<20),
		{Path: "home/tester", Kind: images.Directory, Mode: 0o700, UID: 1000, GID: 1000},
	}
}

// An image is the same bytes each time, and what a table says is what a container
// finds.
func TestInline(t *testing.T) {
	m := images.Image{
		Name: images.Ref("inline"),
		Config: images.Config{
			Env: []string{"PATH=/bin", "NVIDIA_VISIBLE_DEVICES=all"}, User: "1000", WorkingDir: "/etc", Labels: map[string]string{"a": "b"},
		},
	}
	dir := t.TempDir()
	base := filepath.Join(dir, "base")
	if err := os.Mkdir(base, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := images.Unpack(build(t, "busybox"), base); err != nil {
		t.Fatal(err)
	}
	m.Layers = []images.Layer{{Dir: base}, {Files: table()}}
	var sums [2][32]byte
	path := filepath.Join(dir, "image.tar")
	for i := range sums {
		if err := m.Write(path); err != nil {
			t.Fatal(err)
		}
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		sums[i] = sha256.Sum256(data)
	}
	if sums[0] != sums[1] {
		t.Error("the same image gave different bytes")
	}
	run := start(t, m.Name, path)
	check(t, run, "echo $NVIDIA_VISIBLE_DEVICES; id -u; pwd; readlink ld.so.cache; stat -c '%n %A %h %s %t:%T' plain second fifo null disk zeros; stat -c '%n %A %u:%g' /home/tester",
		"all\n1000\n/etc\n/proc/1/root/etc/shadow\n",
		"plain -rwsr-xr-x 2 7", "second -rwsr-xr-x 2 7", "fifo prw-r--r--", "null crw-rw-rw- 1 0 1:3", "disk brw------- 1 0 7:c8", "zeros -rw-r--r-- 1 1048576", "/home/tester drwx------ 1000:1000")
}

// Populate writes the same into a directory, true sparse files included, and does
// not follow a link out of it.
func TestPopulate(t *testing.T) {
	dir := t.TempDir()
	if err := images.Populate(dir, append(table(), images.Sparse("etc/huge", 1<<40))); err != nil {
		t.Fatal(err)
	}
	info, err := os.Lstat(filepath.Join(dir, "etc/huge"))
	if err != nil {
		t.Fatal(err)
	}
	if st := info.Sys().(*syscall.Stat_t); st.Size != 1<<40 || st.Blocks > 16 {
		t.Errorf("huge: %d bytes, %d blocks", st.Size, st.Blocks)
	}
	if info, err = os.Lstat(filepath.Join(dir, "etc/plain")); err != nil || info.Mode() != os.ModeSetuid|0o755 {
		t.Errorf("plain: %v, %v", info, err)
	}
	outside := t.TempDir()
	err = images.Populate(dir, []images.File{images.Symlink("out", outside), images.Text("out/file", 0o644, "x")})
	if _, statErr := os.Stat(filepath.Join(outside, "file")); err == nil || statErr == nil {
		t.Errorf("a link out of the directory was followed: %v", err)
	}
	if err := (images.Image{Name: "x", Layers: []images.Layer{{Files: []images.File{images.Sparse("f", 1<<40)}}}}).Write(filepath.Join(dir, "x.tar")); err == nil {
		t.Error("a layer with a terabyte was accepted")
	}
}

func TestUnknownName(t *testing.T) {
	if _, err := images.Build("no-such"); err == nil || !strings.Contains(err.Error(), "busybox") {
		t.Errorf("got %v, want an error that lists the names", err)
	}
}
