package images_test

import (
	"crypto/sha256"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/images"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

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
		{Path: "home/tester", Mode: unix.S_IFDIR | 0o700, UID: 1000, GID: 1000},
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
	busybox, err := images.Build("busybox")
	if err != nil {
		t.Fatal(err)
	}
	if err := images.Unpack(busybox, base); err != nil {
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
	e := testenv.Start(t, testenv.Options{})
	e.Import(t, path)
	const script = "echo $NVIDIA_VISIBLE_DEVICES; id -u; pwd; readlink ld.so.cache; stat -c '%n %A %h %s %t:%T' plain second fifo null disk zeros; stat -c '%n %A %u:%g' /home/tester"
	got := e.MustRun(t, testenv.RunOptions{Image: m.Name, Runtime: testenv.StockRuntime, Args: []string{"/bin/sh", "-c", script}})
	for _, want := range []string{
		"all\n1000\n/etc\n/proc/1/root/etc/shadow\n", "plain -rwsr-xr-x 2 7", "second -rwsr-xr-x 2 7", "fifo prw-r--r--",
		"null crw-rw-rw- 1 0 1:3", "disk brw------- 1 0 7:c8", "zeros -rw-r--r-- 1 1048576", "/home/tester drwx------ 1000:1000",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("got %q, which lacks %q", got, want)
		}
	}
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
}
