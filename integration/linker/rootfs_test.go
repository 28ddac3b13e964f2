package linker

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/images"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simhost"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testenv"
)

var upperdir = regexp.MustCompile(`upperdir=([^,\s]+)`)

// upper is the directory of a container's snapshot that holds what was written.
func upper(t testing.TB, h *simhost.Host, id string) string {
	t.Helper()
	m := upperdir.FindStringSubmatch(h.Ctr(t, "snapshots", "--snapshotter", testenv.Snapshotter, "mounts", "/none", id))
	if m == nil {
		t.Fatalf("no upper directory of %s", id)
	}
	return m[1]
}

func TestNothingAccumulatesInASnapshotThatIsStartedAgain(t *testing.T) {
	for _, capabilities := range []string{"compute,utility", "all"} {
		t.Run(capabilities, func(t *testing.T) {
			h := simhost.New(t, simhost.Options{})
			for _, image := range []string{"glibc-hwcaps", "musl"} {
				id := h.Create(t, testenv.RunOptions{
					Image: h.Load(t, image), Env: []string{one, "NVIDIA_DRIVER_CAPABILITIES=" + capabilities},
					Args: []string{"/bin/sh", "-c", dlopen + "; cat /etc/ld.so.cache /etc/ld-musl-* 2>/dev/null; ls " + simhost.Lib},
				})
				defer h.Remove(t, id)
				again := func(value, version, stale string) []string {
					r := h.StartTask(t, id)
					simhost.Want(t, r.Output, "cuDriverGetVersion="+value, "libcuda.so."+version)
					if stale != "" && strings.Contains(r.Output, stale) {
						t.Errorf("%s: something of driver %s is left:\n%q", image, stale, r.Output)
					}
					return simhost.Files(t, upper(t, h, id))
				}
				was := h.Driver.Version
				first := again("13000", was, "")
				simhost.Same(t, "the files", first, again("13000", was, ""))
				simhost.Same(t, "the files", first, again("13000", was, ""))
				const next = "590.44.01"
				if err := h.Driver.Upgrade(next); err != nil {
					t.Fatal(err)
				}
				upgraded := again("13010", next, was)
				simhost.Same(t, "the files", upgraded, again("13010", next, was))
				// Upgraded and not once more: the same files, with other content.
				if a, b := namesOf(first), namesOf(upgraded); !slices.Equal(a, b) {
					t.Errorf("%s: files before the upgrade:\n%s\nafter it:\n%s", image, strings.Join(a, "\n"), strings.Join(b, "\n"))
				}
				if err := h.Driver.Upgrade(was); err != nil {
					t.Fatal(err)
				}
				// And back: as if nothing had happened.
				simhost.Same(t, "the files", first, again("13000", was, next))
			}
		})
	}
}

// namesOf are the names of lines.
func namesOf(lines []string) []string {
	var names []string
	for _, line := range lines {
		name, _, _ := strings.Cut(line, " ")
		names = append(names, name)
	}
	return names
}

func TestARunningContainerKeepsItsDriverOverAnUpgrade(t *testing.T) {
	h := simhost.New(t, simhost.Options{})
	const look = dlopen + "; nvidia-smi -L; ls " + simhost.Lib + "; sha256sum /usr/bin/nvidia-smi " + simhost.Lib + "*.so.*"
	image := h.Load(t, "glibc-hwcaps")
	old := start(t, h, testenv.RunOptions{Image: image})
	before := h.Sh(t, old, look)
	simhost.Want(t, before, driverValue, "libcuda.so.580.159.04")
	if err := h.Driver.Upgrade("590.44.01"); err != nil {
		t.Fatal(err)
	}
	young := start(t, h, testenv.RunOptions{Image: image})
	out := h.Sh(t, young, look)
	simhost.Want(t, out, "cuDriverGetVersion=13010", "libcuda.so.590.44.01")
	if strings.Contains(out, "580.159.04") {
		t.Errorf("the new container has something of the old driver:\n%s", out)
	}
	if after := h.Sh(t, old, look); after != before {
		t.Errorf("before the upgrade:\n%s\nafter it:\n%s", before, after)
	}
	if views, err := filepath.Glob(filepath.Join(h.Driver.StateDir, "view/*/root")); err != nil || len(views) != 2 {
		t.Errorf("views: %q, %v", views, err)
	}
}

// Nothing is made in a volume, and nothing is mounted below one.
func TestT53AVolumeWhereTheDriverGoes(t *testing.T) {
	h := simhost.New(t, simhost.Options{})
	image := h.Load(t, "glibc-hwcaps")
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
	bind := func(src string, dst ...string) (list []string) {
		for _, at := range dst {
			list = append(list, "type=bind,src="+src+",dst="+at+",options=rbind:rw")
		}
		return list
	}
	t.Run("over both of the driver's places it is refused", func(t *testing.T) {
		for _, dst := range []string{"/usr/local/nvidia", "/usr/local", "/usr/local/nvidia/", "/usr/local/../local/nvidia", "/usr", "/usr/local/nvidia/lib64/sub"} {
			dir := volume(t)
			before := simhost.Files(t, dir)
			r := h.Run(t, testenv.RunOptions{Image: image, Env: []string{one}, Mounts: bind(dir, dst, "/opt"), Args: []string{"true"}})
			if r.ExitCode == 0 {
				t.Errorf("%s: it started", dst)
			}
			simhost.Want(t, r.Error, fmt.Sprintf("the container mounts a volume at %q", dst), "/usr/local/nvidia", "mount it elsewhere")
			if n := strings.Count(strings.TrimSpace(r.Error), "\n"); n != 0 {
				t.Errorf("%s: not one line: %q", dst, r.Error)
			}
			simhost.Same(t, "the files", before, simhost.Files(t, dir))
		}
	})
	libs := func(t *testing.T, at string) []images.File {
		// What a program of the image needs from the directory that is covered.
		var files []images.File
		for _, name := range []string{"libc.so.6", "libdl.so.2", "libm.so.6", "libpthread.so.0", "librt.so.1", "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"} {
			if _, err := os.Stat(filepath.Join(simhost.Multiarch, name)); err == nil {
				files = append(files, images.FromHost(filepath.Join(at, name), 0o755, filepath.Join(simhost.Multiarch, name)))
			}
		}
		return files
	}
	base := filepath.Base(simhost.Multiarch)
	for _, test := range []struct {
		name, dst string
		files     func(t *testing.T) []images.File
	}{
		{"the library directory", simhost.Multiarch, func(t *testing.T) []images.File { return libs(t, "") }},
		{"the library directory by its other name", "/lib/" + base, func(t *testing.T) []images.File { return libs(t, "") }},
		{"the parent of the library directory", "/usr/lib", func(t *testing.T) []images.File { return libs(t, base) }},
		{"the parent of the library directory by its other name", "/lib", func(t *testing.T) []images.File { return libs(t, base) }},
		{"the directory of programs", "/usr/bin", func(t *testing.T) []images.File { return busybox(t) }},
		{"the driver's place", "/usr/local/nvidia", func(*testing.T) []images.File { return nil }},
		{"the parent of the driver's place", "/usr/local", func(*testing.T) []images.File { return nil }},
		{"a directory of the driver's place", "/usr/local/nvidia/lib64", func(*testing.T) []images.File { return nil }},
		{"the directory of programs by its other name", "/bin", func(t *testing.T) []images.File { return busybox(t) }},
	} {
		t.Run("at "+test.name+" nothing is made in it", func(t *testing.T) {
			dir := volume(t, test.files(t)...)
			before := simhost.Files(t, dir)
			id := start(t, h, testenv.RunOptions{Image: image, Mounts: bind(dir, test.dst), Env: []string{"NVIDIA_DRIVER_CAPABILITIES=all"}})
			out := h.Sh(t, id, dlopen+"; PATH=/usr/local/nvidia/bin:/opt/nvidia-driver/bin:$PATH nvidia-smi -L; cat /proc/self/mountinfo")
			want := loaded
			if strings.HasPrefix(test.dst, "/usr/local") {
				want = strings.ReplaceAll(loaded, "/usr/local/nvidia", "/opt/nvidia-driver")
			}
			simhost.Want(t, out, want, h.Driver.GPUs[0].UUID)
			for line := range strings.Lines(out) {
				if f := strings.Fields(line); len(f) > 5 && strings.HasPrefix(f[4], test.dst+"/") {
					t.Errorf("mounted below the volume: %s", line)
				}
			}
			simhost.Same(t, "the files", before, simhost.Files(t, dir))
		})
	}
	t.Run("reached by a link of the image nothing is made in it", func(t *testing.T) {
		for name, target := range map[string]string{"usr/local/nvidia": "/mnt/volume/nvidia", "usr/bin/nvidia-smi": "/mnt/volume/made"} {
			tree := h.Tree(t, "glibc-hwcaps", images.Dir("mnt/volume", 0o755))
			if err := images.Populate(tree, []images.File{images.Symlink(name, target)}); err != nil {
				t.Fatal(err)
			}
			dir := volume(t)
			before := simhost.Files(t, dir)
			r := h.Run(t, testenv.RunOptions{RootfsDir: tree, Env: []string{one}, Mounts: bind(dir, "/mnt/volume"), Args: []string{"true"}})
			t.Logf("%s: exit status %d %s", name, r.ExitCode, r.Error)
			simhost.Same(t, "the files", before, simhost.Files(t, dir))
		}
	})
}

// A volume over /etc hides the loader's cache, and a tmpfs there has none.
func TestTheDriverIsFoundWithoutTheEtcOfTheImage(t *testing.T) {
	h := simhost.New(t, simhost.Options{})
	for _, test := range []struct{ image, cache, mount string }{
		{"glibc-nocache", "hidden", "type=bind,dst=/etc,options=rbind:rw,src="},
		{"glibc-nocache", "mounted", "type=tmpfs,dst=/etc"},
		{"musl", "hidden", "type=bind,dst=/etc,options=rbind:rw,src="},
	} {
		t.Run(test.image+" "+test.cache, func(t *testing.T) {
			dir := t.TempDir()
			mount, bind := strings.CutSuffix(test.mount, "src=")
			if bind {
				mount = test.mount + dir
			}
			id := start(t, h, testenv.RunOptions{Image: h.Load(t, test.image), Mounts: []string{mount}})
			simhost.Want(t, h.Sh(t, id, dlopen+" libnvidia-ptxjitcompiler.so.1"), "libcuda.so.1 OK", driverValue, "libnvidia-ptxjitcompiler.so.1 OK")
			if got := h.Record(t, id).Linker.Cache; got != test.cache {
				t.Errorf("recorded %s", got)
			}
			if names := simhost.Names(t, dir); len(names) > 0 {
				t.Errorf("made in the volume: %v", names)
			}
		})
	}
}

// ownRoot makes the root of the calling mount namespace an overlay of the host's, whose upper
// directory is in $1, and then becomes the rest of its arguments. $2 is shared with the host, and
// /run/host is that root: runc cannot pivot to / itself.
const ownRoot = `set -e
mount -t overlay none -o lowerdir=/,upperdir="$1/upper",workdir="$1/work" "$1/root"
for dir in /proc /sys /dev "$2"; do mount --rbind "$dir" "$1/root$dir"; done
mount -t tmpfs none "$1/root/run"
cd "$1/root"
pivot_root . .
umount -l .
cd /
mkdir /run/host
mount --bind / /run/host
shift 2
exec "$@"`

// The host is an overlay of this one: runc makes mount points, and they would stay.
func TestAContainerOfTheHostsRootLeavesNothingThere(t *testing.T) {
	overlay := t.TempDir()
	if err := unix.Mount("tmpfs", overlay, "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(overlay, 0); err != nil {
			t.Error(err)
		}
	})
	for _, dir := range []string{"upper", "work", "root"} {
		if err := os.Mkdir(filepath.Join(overlay, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	h := simhost.New(t, simhost.Options{Env: testenv.Options{
		Wrapper: []string{"unshare", "--mount", "/bin/sh", "-c", ownRoot, "sh", overlay, os.TempDir()},
	}})
	before := namesOf(simhost.Files(t, filepath.Join(overlay, "upper")))
	id := start(t, h, testenv.RunOptions{RootfsDir: "/run/host", Env: []string{"NVIDIA_DRIVER_CAPABILITIES=all"}})
	simhost.Want(t, h.Sh(t, id, "ls "+simhost.Lib), "libcuda.so.1", "libnvidia-ml.so.1")
	if plan := h.Record(t, id); !strings.Contains(strings.Join(plan.Notes, "\n"), "the host's own") {
		t.Errorf("recorded %+v %q", plan.Linker, plan.Notes)
	}
	h.Gone(t, id)
	for _, name := range namesOf(simhost.Files(t, filepath.Join(overlay, "upper"))) {
		if !slices.Contains(before, name) && !strings.HasPrefix("usr/local/nvidia", name) {
			t.Errorf("made on the host: %s", name)
		}
	}
}

// busybox is busybox as /bin/sh and the few programs that a test wants.
func busybox(t *testing.T) []images.File {
	t.Helper()
	files := []images.File{images.FromHost("busybox", 0o755, "/bin/busybox")}
	for _, name := range []string{"sh", "sleep", "cat", "ls", "true"} {
		files = append(files, images.Symlink(name, "busybox"))
	}
	return files
}
