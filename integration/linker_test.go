package integration

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/images"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testenv"
)

// Where programs find the simulated driver and what its libcuda says.
const (
	lnLib         = "/usr/local/nvidia/lib64/"
	lnDriverValue = "cuDriverGetVersion=13000"
	lnOne         = "NVIDIA_VISIBLE_DEVICES=0"
)

// lnMultiarch is Debian's library directory of this machine.
func lnMultiarch() string {
	return map[string]string{"amd64": "/usr/lib/x86_64-linux-gnu", "arm64": "/usr/lib/aarch64-linux-gnu"}[runtime.GOARCH]
}

// lnStart starts a container with GPU 0 that waits, and removes it with the test.
func (h *host) lnStart(t testing.TB, o testenv.RunOptions) string {
	t.Helper()
	o.Detach = true
	o.Env = append([]string{lnOne}, o.Env...)
	o.Args = []string{"/bin/sh", "-c", "trap 'exit 0' TERM; while :; do sleep 1; done"}
	id := h.Run(t, o).ID
	t.Cleanup(func() { h.lnRemove(t, id) })
	return id
}

// lnRemove removes a container unless the test has done so.
func (h *host) lnRemove(t testing.TB, id string) {
	t.Helper()
	_, _, _ = h.CtrErr("tasks", "rm", "--force", id)
	if _, _, err := h.CtrErr("containers", "rm", id); err != nil && !strings.Contains(err.Error(), "not found") {
		t.Error(err)
	}
}

// lnSh runs a script in a running container; it has to exit with 0.
func (h *host) lnSh(t testing.TB, id, script string) string {
	t.Helper()
	r := h.Exec(t, id, "/bin/sh", "-c", script)
	if r.ExitCode != 0 {
		t.Errorf("%s\nexit status %d\n%s%s", script, r.ExitCode, r.Stdout, r.Stderr)
	}
	return r.Stdout
}

// lnWant fails the test for each of wants that is not in out.
func lnWant(t testing.TB, out string, wants ...string) {
	t.Helper()
	for _, want := range wants {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in:\n%s", want, out)
		}
	}
}

// lnTree unpacks a named image into a new directory of the host's environment.
func (h *host) lnTree(t testing.TB, name string, more ...images.File) string {
	t.Helper()
	tar, err := images.Build(name)
	if err != nil {
		t.Fatal(err)
	}
	return h.lnUnpack(t, tar, more...)
}

func (h *host) lnUnpack(t testing.TB, tar string, more ...images.File) string {
	t.Helper()
	dir, err := os.MkdirTemp(h.Dir, "rootfs")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := images.Unpack(tar, dir); err != nil {
		t.Fatal(err)
	}
	if err := images.Populate(dir, more); err != nil {
		t.Fatal(err)
	}
	return dir
}

// lnLdconfig makes the cache of a tree with this host's ldconfig.
func lnLdconfig(t testing.TB, dir string) {
	t.Helper()
	if out, err := exec.Command("/sbin/ldconfig", "-r", dir).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}

const lnPython = `import ctypes, ctypes.util
print("find_library", ctypes.util.find_library("cuda"))
v = ctypes.c_int()
ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(v))
print("python", v.value)
`

const lnProgram = `#include <stdio.h>
int cuDriverGetVersion(int *);
int main(void) { int v = 0; cuDriverGetVersion(&v); printf("linked %d\n", v); return 0; }
`

func TestProgramsOfADebianImageFindTheDriver(t *testing.T) {
	h := newHost(t, hostOptions{})
	id := h.lnStart(t, testenv.RunOptions{Image: h.image(t, "debian12")})
	plan := h.record(t, id)
	if plan.Linker.LibC != "glibc" || plan.Linker.Cache != "written" || plan.Linker.Directory != lnMultiarch() || plan.Linker.Compat != "" {
		t.Errorf("recorded %+v", plan.Linker)
	}
	// lists fails the test unless ldconfig lists the driver, first.
	lists := func(t *testing.T) {
		t.Helper()
		out := h.lnSh(t, id, "ldconfig -p | grep -E 'libcuda.so(.1)? '")
		lnWant(t, out, "libcuda.so.1 (libc6,", "=> "+lnLib+"libcuda.so.1\n", "=> "+lnLib+"libcuda.so\n")
		for _, name := range []string{"libcuda.so.1 ", "libcuda.so "} {
			for line := range strings.Lines(out) {
				if strings.HasPrefix(strings.TrimSpace(line), name) && !strings.Contains(line, "libc6)") {
					if !strings.Contains(line, "=> "+lnLib) {
						t.Errorf("the first entry of %s is %s", name, line)
					}
					break
				}
			}
		}
		lnWant(t, h.lnSh(t, id, "/test/dlopen -s cuDriverGetVersion libcuda.so.1; nvidia-smi -L"),
			"libcuda.so.1 OK "+lnLib+"libcuda.so.1 "+lnDriverValue, h.Driver.GPUs[0].UUID)
	}
	// The order matters: each step leaves the container changed.
	t.Run("at the start", func(t *testing.T) {
		lists(t)
		lnWant(t, h.lnSh(t, id, "/test/cucount"), "count 1\n", h.Driver.GPUs[0].UUID)
		lnWant(t, h.lnSh(t, id, "/test/dlopen libnvidia-ml.so.1 libcuda.so libnvidia-ptxjitcompiler.so.1"),
			"libnvidia-ml.so.1 OK", "libcuda.so OK", "libnvidia-ptxjitcompiler.so.1 OK")
	})
	t.Run("from Python", func(t *testing.T) {
		lnWant(t, h.lnSh(t, id, "cat >/tmp/p.py <<'E'\n"+lnPython+"E\npython3 /tmp/p.py"), "find_library libcuda.so.1\n", "python 13000\n")
	})
	t.Run("from the compiler", func(t *testing.T) {
		lnWant(t, h.lnSh(t, id, "cat >/tmp/p.c <<'E'\n"+lnProgram+"E\ngcc -o /tmp/p /tmp/p.c -lcuda && /tmp/p"), "linked 13000\n")
	})
	t.Run("after a later ldconfig", func(t *testing.T) {
		h.lnSh(t, id, "ldconfig")
		lists(t)
	})
	t.Run("after the installation of a package", func(t *testing.T) {
		lnWant(t, h.lnSh(t, id, "dpkg -i "+images.LibfooDeb+" 2>&1"), "Processing triggers for libc-bin")
		lnWant(t, h.lnSh(t, id, "/test/dlopen -s foo libfoo.so.1"), "foo=12")
		lists(t)
	})
	t.Run("after the linker's own files were removed", func(t *testing.T) {
		h.lnSh(t, id, "rm /etc/ld.so.cache && ldconfig")
		lists(t)
	})
}

func TestProgramsOfEveryKindOfImageFindTheDriver(t *testing.T) {
	h := newHost(t, hostOptions{})
	uuid := h.Driver.GPUs[0].UUID
	for _, test := range []struct {
		image, libc, dir, cache string
		script                  string
		wants                   []string
	}{
		{
			image: "glibc-nocache", libc: "glibc", dir: lnMultiarch(), cache: "written",
			script: "ls /etc/ld.so.cache; /test/dlopen -s cuDriverGetVersion libcuda.so.1; /test/dlopen libm.so.6; nvidia-smi -L",
			wants:  []string{"/etc/ld.so.cache\n", "libcuda.so.1 OK " + lnLib + "libcuda.so.1 " + lnDriverValue, "libm.so.6 OK", uuid},
		},
		{
			// A hostile libcuda in glibc-hwcaps does not win; the image's own library
			// there goes on winning.
			image: "glibc-hwcaps", libc: "glibc", dir: lnMultiarch(), cache: "written",
			script: "/test/dlopen -s cuDriverGetVersion libcuda.so.1; /test/dlopen -s foo libfoo.so.1; nvidia-smi -L; ldconfig -p | grep -c hwcaps.*libcuda; true",
			wants:  []string{"libcuda.so.1 OK " + lnLib + "libcuda.so.1 " + lnDriverValue, "/glibc-hwcaps/", "libfoo.so.1 foo=", uuid, "\n0\n"},
		},
		{
			image: "usrlib64", libc: "glibc", dir: "/usr/lib64", cache: "written",
			script: "/test/dlopen -s cuDriverGetVersion libcuda.so.1; /test/dlopen -s foo libfoo.so.1; ls /usr/lib64/libcuda.so.1; ldconfig && /test/dlopen libcuda.so.1; nvidia-smi -L",
			wants:  []string{"libcuda.so.1 OK " + lnLib + "libcuda.so.1 " + lnDriverValue, "foo=1", "/usr/lib64/libcuda.so.1\n", "libcuda.so.1 OK " + lnLib + "libcuda.so.1\n", uuid},
		},
		{
			image: "musl", libc: "musl", dir: "/lib", cache: "unchanged",
			script: "cat /etc/ld-musl-*.path; /test/dlopen -s cuDriverGetVersion libcuda.so.1; /test/dlopen libnvidia-ptxjitcompiler.so.1",
			wants: []string{
				"/lib:/usr/local/lib:/usr/lib\n" + strings.TrimSuffix(lnLib, "/") + "\n", "libcuda.so.1 OK /lib/libcuda.so.1 " + lnDriverValue,
				// Only the path file names where this one is.
				"libnvidia-ptxjitcompiler.so.1 OK " + lnLib,
			},
		},
		{
			image: "busybox", libc: "", dir: "", cache: "unchanged",
			script: "ls " + lnLib + " /usr/local/nvidia/bin; ls /etc; /test/opendev /dev/nvidiactl",
			wants:  []string{"libcuda.so." + h.Driver.Version + "\n", "libcuda.so.1\n", "nvidia-smi\n", "/dev/nvidiactl ENXIO"},
		},
		{
			image: "large", libc: "glibc", dir: lnMultiarch(), cache: "written",
			script: "/test/dlopen -s cuDriverGetVersion libcuda.so.1; /test/dlopen -s foo libtest0000.so.1 libtest4999.so.1; ldconfig -p | grep -c libtest",
			wants:  []string{lnDriverValue, "libtest0000.so.1 OK", "libtest4999.so.1 OK", "\n5000\n"},
		},
	} {
		t.Run(test.image, func(t *testing.T) {
			id := h.lnStart(t, testenv.RunOptions{Image: h.image(t, test.image)})
			plan := h.record(t, id)
			if got := plan.Linker; got.LibC != test.libc || got.Directory != test.dir || got.Cache != test.cache {
				t.Errorf("recorded %+v", got)
			}
			if notes := strings.Join(plan.Notes, "\n"); strings.Contains(notes, "no C library") != (test.libc == "") {
				t.Errorf("notes: %s", notes)
			}
			out := h.lnSh(t, id, test.script)
			lnWant(t, out, test.wants...)
			if strings.Contains(out, "666") {
				t.Errorf("the image's libcuda won:\n%s", out)
			}
		})
	}
	t.Run("with LD_LIBRARY_PATH as in CUDA images", func(t *testing.T) {
		id := h.lnStart(t, testenv.RunOptions{Image: h.image(t, "glibc-hwcaps"), Env: []string{"LD_LIBRARY_PATH=/usr/local/nvidia/lib:/usr/local/nvidia/lib64"}})
		lnWant(t, h.lnSh(t, id, "/test/dlopen -s cuDriverGetVersion libcuda.so.1; nvidia-smi -L"), "libcuda.so.1 OK "+lnLib+"libcuda.so.1 "+lnDriverValue, uuid)
	})
	t.Run("with a read-only root", func(t *testing.T) {
		for _, image := range []string{"glibc-nocache", "glibc-hwcaps", "musl", "busybox"} {
			id := h.lnStart(t, testenv.RunOptions{Image: h.image(t, image), ReadOnly: true})
			lnWant(t, h.lnSh(t, id, "touch /x 2>&1; ls "+lnLib), "Read-only file system", "libcuda.so.1\n")
			if image != "busybox" {
				lnWant(t, h.lnSh(t, id, "/test/dlopen -s cuDriverGetVersion libcuda.so.1"), "libcuda.so.1 OK", lnDriverValue)
			}
		}
	})
	t.Run("as a user that is not root", func(t *testing.T) {
		id := h.lnStart(t, testenv.RunOptions{Image: h.image(t, "glibc-hwcaps"), User: "1000"})
		node := fmt.Sprintf("/dev/nvidia%d", h.Driver.GPUs[0].Minor)
		out := h.lnSh(t, id, "id -u; /test/dlopen -s cuDriverGetVersion libcuda.so.1; nvidia-smi -L; /test/opendev "+node+" /dev/nvidiactl; test -w "+node+" && echo writable; ldconfig -p | grep libcuda.so.1; cat /etc/ld.so.conf.d/000-*")
		lnWant(t, out, "1000\n", lnDriverValue, uuid, "writable\n", "=> "+lnLib, "\n"+strings.TrimSuffix(lnLib, "/")+"\n")
		if strings.Contains(out, "EPERM") || strings.Contains(out, "EACCES") {
			t.Errorf("a node cannot be used:\n%s", out)
		}
	})
	t.Run("with a user in the image", func(t *testing.T) {
		dir := h.lnTree(t, "glibc-hwcaps")
		m := images.Image{Name: "test/user:latest", Config: images.Config{
			User: "tester", Env: []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", lnOne},
		}, Layers: []images.Layer{{Dir: dir}}}
		tar := filepath.Join(h.Dir, "user.tar")
		if err := m.Write(tar); err != nil {
			t.Fatal(err)
		}
		h.Import(t, tar)
		out := h.MustRun(t, testenv.RunOptions{Image: m.Name, Args: []string{"/bin/sh", "-c", "id -u; nvidia-smi -L; /test/cucount"}})
		lnWant(t, out, "1000\n", uuid, "count 1\n")
	})
}

func TestADirectoryAsRootFileSystem(t *testing.T) {
	h := newHost(t, hostOptions{})
	const look = "/test/dlopen -s cuDriverGetVersion libcuda.so.1; nvidia-smi -L"
	works := func(t *testing.T, id string) {
		t.Helper()
		lnWant(t, h.lnSh(t, id, look), "libcuda.so.1 OK "+lnLib+"libcuda.so.1 "+lnDriverValue, h.Driver.GPUs[0].UUID)
	}
	t.Run("shared by two containers, and used again, it holds the same files", func(t *testing.T) {
		dir := h.lnTree(t, "glibc-hwcaps")
		one := h.lnStart(t, testenv.RunOptions{RootfsDir: dir})
		first := rtTree(t, dir)
		two := h.lnStart(t, testenv.RunOptions{RootfsDir: dir})
		works(t, one)
		works(t, two)
		h.lnRemove(t, one)
		works(t, two)
		third := h.lnStart(t, testenv.RunOptions{RootfsDir: dir})
		works(t, third)
		rtSame(t, first, rtTree(t, dir))
	})
	t.Run("on a read-only mount the cache is mounted instead", func(t *testing.T) {
		dir := h.lnTree(t, "glibc-hwcaps")
		cache := filepath.Join(dir, "etc/ld.so.cache")
		before, err := os.ReadFile(cache)
		if err != nil {
			t.Fatal(err)
		}
		// Once writable, so that the mount points are there; then as it was.
		h.MustRun(t, testenv.RunOptions{RootfsDir: dir, Env: []string{lnOne}, Args: []string{"true"}})
		if err := os.WriteFile(cache, before, 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.Remove(filepath.Join(dir, "etc/ld.so.conf.d/000-nvidia-shim.conf")); err != nil {
			t.Fatal(err)
		}
		ro := filepath.Join(h.Dir, "ro")
		if err := os.Mkdir(ro, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := unix.Mount(dir, ro, "", unix.MS_BIND, ""); err != nil {
			t.Fatal(err)
		}
		defer unix.Unmount(ro, unix.MNT_DETACH)
		if err := unix.Mount("", ro, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
			t.Fatal(err)
		}
		id := h.lnStart(t, testenv.RunOptions{RootfsDir: ro, ReadOnly: true})
		if plan := h.record(t, id); plan.Linker.Cache != "mounted" || !strings.Contains(strings.Join(plan.Notes, "\n"), "was not written") {
			t.Errorf("recorded %+v %q", plan.Linker, plan.Notes)
		}
		works(t, id)
		lnWant(t, h.lnSh(t, id, "ldconfig -p | grep libcuda.so.1; /test/dlopen -s foo libfoo.so.1"), "=> "+lnLib, "/glibc-hwcaps/", "libfoo.so.1 foo=")
		if after, err := os.ReadFile(cache); err != nil || string(after) != string(before) {
			t.Errorf("the image's own cache has changed: %v", err)
		}
		h.lnRemove(t, id)
	})
	t.Run("with a stub of libcuda in its cache", func(t *testing.T) {
		dir := h.lnTree(t, "glibc-hwcaps", images.Text("etc/ld.so.conf.d/000-aaa.conf", 0o644, "/usr/local/cuda/lib64/stubs\n"))
		hostile, err := filepath.Glob(filepath.Join(dir, lnMultiarch(), "glibc-hwcaps/*/libcuda.so.1"))
		if err != nil || len(hostile) == 0 {
			t.Fatal("no libcuda in the image", err)
		}
		if err := images.Populate(dir, []images.File{
			images.FromHost("usr/local/cuda/lib64/stubs/libcuda.so.1", 0o644, hostile[0]),
			images.Symlink("usr/local/cuda/lib64/stubs/libcuda.so", "libcuda.so.1"),
		}); err != nil {
			t.Fatal(err)
		}
		for _, name := range hostile {
			if err := os.Remove(name); err != nil {
				t.Fatal(err)
			}
		}
		lnLdconfig(t, dir)
		plain := h.MustRun(t, testenv.RunOptions{RootfsDir: dir, Runtime: testenv.StockRuntime, Args: []string{"/test/dlopen", "-s", "cuDriverGetVersion", "libcuda.so.1"}})
		lnWant(t, plain, "stubs/libcuda.so.1 cuDriverGetVersion=666")
		works(t, h.lnStart(t, testenv.RunOptions{RootfsDir: dir}))
	})
}

// lnPlan is a shorthand for tests that only look at the record.
func (h *host) lnPlan(t testing.TB, o testenv.RunOptions) gpuinject.Plan {
	t.Helper()
	return h.record(t, h.lnStart(t, o))
}
