package integration

import (
	"crypto/sha256"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/images"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testenv"
)

// rtTree is one line for each file below dir: name, mode, owner, and content or
// link target.
func rtTree(t testing.TB, dir string) []string {
	t.Helper()
	var lines []string
	err := filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		var st unix.Stat_t
		if err := unix.Lstat(name, &st); err != nil {
			return err
		}
		rel, _ := filepath.Rel(dir, name)
		line := fmt.Sprintf("%s %o %d:%d %x", rel, st.Mode, st.Uid, st.Gid, st.Rdev)
		switch st.Mode & unix.S_IFMT {
		case unix.S_IFREG:
			if st.Size > 64<<20 {
				line += fmt.Sprint(" ", st.Size)
				break
			}
			data, err := os.ReadFile(name)
			if err != nil {
				return err
			}
			line += fmt.Sprintf(" %d %x", len(data), sha256.Sum256(data))
		case unix.S_IFLNK:
			target, err := os.Readlink(name)
			if err != nil {
				return err
			}
			line += " -> " + target
		}
		lines = append(lines, line)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return lines
}

// rtSame fails the test with what differs.
func rtSame(t testing.TB, before, after []string) {
	t.Helper()
	for _, line := range after {
		if !slices.Contains(before, line) {
			t.Errorf("new: %s", line)
		}
	}
	for _, line := range before {
		if !slices.Contains(after, line) {
			t.Errorf("gone: %s", line)
		}
	}
}

var rtUpperdir = regexp.MustCompile(`upperdir=([^,\s]+)`)

// rtUpper is the directory of a container's snapshot that holds what was written.
func (h *host) rtUpper(t testing.TB, id string) string {
	t.Helper()
	m := rtUpperdir.FindStringSubmatch(h.Ctr(t, "snapshots", "--snapshotter", h.Options.Snapshotter, "mounts", "/none", id))
	if m == nil {
		t.Fatalf("no upper directory of %s", id)
	}
	return m[1]
}

func TestNothingAccumulatesInASnapshotThatIsStartedAgain(t *testing.T) {
	for _, capabilities := range []string{"compute,utility", "all"} {
		t.Run(capabilities, func(t *testing.T) {
			h := newHost(t, hostOptions{})
			for _, image := range []string{"glibc-hwcaps", "musl"} {
				id := h.Create(t, testenv.RunOptions{
					Image: h.image(t, image), Env: []string{lnOne, "NVIDIA_DRIVER_CAPABILITIES=" + capabilities},
					Args: []string{"/bin/sh", "-c", "/test/dlopen -s cuDriverGetVersion libcuda.so.1; cat /etc/ld.so.cache /etc/ld-musl-* 2>/dev/null; ls " + lnLib},
				})
				defer h.Remove(t, id)
				start := func(value, version, stale string) []string {
					r := h.StartTask(t, id)
					lnWant(t, r.Stdout, "cuDriverGetVersion="+value, "libcuda.so."+version)
					if stale != "" && strings.Contains(r.Stdout, stale) {
						t.Errorf("%s: something of driver %s is left:\n%q", image, stale, r.Stdout)
					}
					return rtTree(t, h.rtUpper(t, id))
				}
				was := h.Driver.Version
				first := start("13000", was, "")
				rtSame(t, first, start("13000", was, ""))
				rtSame(t, first, start("13000", was, ""))
				const next = "590.44.01"
				if err := h.Driver.Upgrade(next); err != nil {
					t.Fatal(err)
				}
				upgraded := start("13010", next, was)
				rtSame(t, upgraded, start("13010", next, was))
				// Upgraded and not once more: the same files, with other content.
				if a, b := rtNames(first), rtNames(upgraded); !slices.Equal(a, b) {
					t.Errorf("%s: files before the upgrade:\n%s\nafter it:\n%s", image, strings.Join(a, "\n"), strings.Join(b, "\n"))
				}
				if err := h.Driver.Upgrade(was); err != nil {
					t.Fatal(err)
				}
				// And back: as if nothing had been.
				rtSame(t, first, start("13000", was, next))
			}
		})
	}
}

// rtNames are the names of lines.
func rtNames(lines []string) []string {
	var names []string
	for _, line := range lines {
		name, _, _ := strings.Cut(line, " ")
		names = append(names, name)
	}
	return names
}

func TestARunningContainerKeepsItsDriverOverAnUpgrade(t *testing.T) {
	h := newHost(t, hostOptions{})
	const look = "/test/dlopen -s cuDriverGetVersion libcuda.so.1; nvidia-smi -L; ls " + lnLib + "; sha256sum /usr/bin/nvidia-smi " + lnLib + "*.so.*"
	image := h.image(t, "glibc-hwcaps")
	old := h.lnStart(t, testenv.RunOptions{Image: image})
	before := h.lnSh(t, old, look)
	lnWant(t, before, lnDriverValue, "libcuda.so.580.159.04")
	if err := h.Driver.Upgrade("590.44.01"); err != nil {
		t.Fatal(err)
	}
	young := h.lnStart(t, testenv.RunOptions{Image: image})
	out := h.lnSh(t, young, look)
	lnWant(t, out, "cuDriverGetVersion=13010", "libcuda.so.590.44.01")
	if strings.Contains(out, "580.159.04") {
		t.Errorf("the new container has something of the old driver:\n%s", out)
	}
	if after := h.lnSh(t, old, look); after != before {
		t.Errorf("before the upgrade:\n%s\nafter it:\n%s", before, after)
	}
	if views, err := filepath.Glob(filepath.Join(h.Driver.StateDir, "view/*/root")); err != nil || len(views) != 2 {
		t.Errorf("views: %q, %v", views, err)
	}
}

// T53: nothing is made in a volume, and nothing is mounted below one.
func TestAVolumeWhereTheDriverGoes(t *testing.T) {
	h := newHost(t, hostOptions{})
	image := h.image(t, "glibc-hwcaps")
	volume := func(t *testing.T, files ...images.File) string {
		t.Helper()
		dir, err := os.MkdirTemp(h.Dir, "volume")
		if err != nil {
			t.Fatal(err)
		}
		if err := images.Populate(dir, append([]images.File{images.Text("mine", 0o644, "a user's file")}, files...)); err != nil {
			t.Fatal(err)
		}
		return dir
	}
	bind := func(src, dst string) []string {
		return []string{"type=bind,src=" + src + ",dst=" + dst + ",options=rbind:rw"}
	}
	t.Run("over the driver's place it is refused", func(t *testing.T) {
		for _, dst := range []string{"/usr/local/nvidia", "/usr/local", "/usr/local/nvidia/", "/usr/local/../local/nvidia", "/usr", "/usr/local/nvidia/lib64/sub"} {
			dir := volume(t)
			before := rtTree(t, dir)
			r := h.Run(t, testenv.RunOptions{Image: image, Env: []string{lnOne}, Mounts: bind(dir, dst), Args: []string{"true"}})
			if r.ExitCode == 0 {
				t.Errorf("%s: it started", dst)
			}
			lnWant(t, r.Stderr, fmt.Sprintf("the container mounts %q at %q", dir, dst), "/usr/local/nvidia", "remove that mount")
			if n := strings.Count(strings.TrimSpace(r.Stderr), "\n"); n != 0 {
				t.Errorf("%s: not one line: %q", dst, r.Stderr)
			}
			rtSame(t, before, rtTree(t, dir))
		}
	})
	libs := func(t *testing.T, at string) []images.File {
		// What a program of the image needs from the directory that is covered.
		var files []images.File
		for _, name := range []string{"libc.so.6", "libdl.so.2", "libm.so.6", "libpthread.so.0", "librt.so.1", "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"} {
			if _, err := os.Stat(filepath.Join(lnMultiarch(), name)); err == nil {
				files = append(files, images.FromHost(filepath.Join(at, name), 0o755, filepath.Join(lnMultiarch(), name)))
			}
		}
		return files
	}
	base := filepath.Base(lnMultiarch())
	for _, test := range []struct {
		name, dst string
		files     func(t *testing.T) []images.File
	}{
		{"the library directory", lnMultiarch(), func(t *testing.T) []images.File { return libs(t, "") }},
		{"the library directory by its other name", "/lib/" + base, func(t *testing.T) []images.File { return libs(t, "") }},
		{"the parent of the library directory", "/usr/lib", func(t *testing.T) []images.File { return libs(t, base) }},
		{"the parent of the library directory by its other name", "/lib", func(t *testing.T) []images.File { return libs(t, base) }},
		{"the directory of programs", "/usr/bin", func(t *testing.T) []images.File { return rtBusybox(t) }},
		{"the directory of programs by its other name", "/bin", func(t *testing.T) []images.File { return rtBusybox(t) }},
	} {
		t.Run("at "+test.name+" nothing is made in it", func(t *testing.T) {
			dir := volume(t, test.files(t)...)
			before := rtTree(t, dir)
			id := h.lnStart(t, testenv.RunOptions{Image: image, Mounts: bind(dir, test.dst), Env: []string{"NVIDIA_DRIVER_CAPABILITIES=all"}})
			out := h.lnSh(t, id, "/test/dlopen -s cuDriverGetVersion libcuda.so.1; /usr/local/nvidia/bin/nvidia-smi -L; cat /proc/self/mountinfo")
			lnWant(t, out, "libcuda.so.1 OK "+lnLib+"libcuda.so.1 "+lnDriverValue, h.Driver.GPUs[0].UUID)
			for line := range strings.Lines(out) {
				if f := strings.Fields(line); len(f) > 5 && strings.HasPrefix(f[4], test.dst+"/") {
					t.Errorf("mounted below the volume: %s", line)
				}
			}
			rtSame(t, before, rtTree(t, dir))
		})
	}
	t.Run("reached by a link of the image nothing is made in it", func(t *testing.T) {
		for name, target := range map[string]string{"usr/local/nvidia": "/mnt/volume/nvidia", "usr/bin/nvidia-smi": "/mnt/volume/made"} {
			tree := h.lnTree(t, "glibc-hwcaps", images.Dir("mnt/volume", 0o755))
			if err := images.Populate(tree, []images.File{images.Symlink(name, target)}); err != nil {
				t.Fatal(err)
			}
			dir := volume(t)
			before := rtTree(t, dir)
			r := h.Run(t, testenv.RunOptions{RootfsDir: tree, Env: []string{lnOne}, Mounts: bind(dir, "/mnt/volume"), Args: []string{"true"}})
			t.Logf("%s: exit status %d %s", name, r.ExitCode, r.Stderr)
			rtSame(t, before, rtTree(t, dir))
		}
	})
}

// rtBusybox is busybox as /bin/sh and the few programs that a test wants.
func rtBusybox(t *testing.T) []images.File {
	t.Helper()
	files := []images.File{images.FromHost("busybox", 0o755, "/bin/busybox")}
	for _, name := range []string{"sh", "sleep", "cat", "ls", "true"} {
		files = append(files, images.Symlink(name, "busybox"))
	}
	return files
}
