package linker

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/images"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simhost"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testenv"
)

func TestMain(m *testing.M) { simhost.Main(m) }

const (
	// driverValue is the answer of the simulated driver's libcuda.
	driverValue = "cuDriverGetVersion=13000"
	one         = "NVIDIA_VISIBLE_DEVICES=0"
	dlopen      = "/test/dlopen -s cuDriverGetVersion libcuda.so.1"
	// loaded is what dlopen prints for the driver's library.
	loaded = "libcuda.so.1 OK " + simhost.Lib + "libcuda.so.1 " + driverValue
)

// start starts a container with GPU 0 that waits.
func start(t testing.TB, h *simhost.Host, o testenv.RunOptions) string {
	t.Helper()
	o.Env = append([]string{one}, o.Env...)
	return h.Start(t, o)
}

const python = `import ctypes, ctypes.util
print("find_library", ctypes.util.find_library("cuda"))
v = ctypes.c_int()
ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(v))
print("python", v.value)
`

const program = `#include <stdio.h>
int cuDriverGetVersion(int *);
int main(void) { int v = 0; cuDriverGetVersion(&v); printf("linked %d\n", v); return 0; }
`

func TestT69ProgramsOfADebianImageFindTheDriver(t *testing.T) {
	h := simhost.New(t, simhost.Options{})
	id := start(t, h, testenv.RunOptions{Image: h.Load(t, "debian12")})
	plan := h.Record(t, id)
	if plan.Linker.LibC != "glibc" || plan.Linker.Cache != "written" || plan.Linker.Directory != simhost.Multiarch || plan.Linker.Compat != "" {
		t.Errorf("recorded %+v", plan.Linker)
	}
	// lists fails the test unless ldconfig lists the driver, first.
	lists := func(t *testing.T) {
		t.Helper()
		out := h.Sh(t, id, "ldconfig -p | grep -E 'libcuda.so(.1)? '")
		simhost.Want(t, out, "libcuda.so.1 (libc6,", "=> "+simhost.Lib+"libcuda.so.1\n", "=> "+simhost.Lib+"libcuda.so\n")
		for _, name := range []string{"libcuda.so.1 ", "libcuda.so "} {
			for line := range strings.Lines(out) {
				if strings.HasPrefix(strings.TrimSpace(line), name) && !strings.Contains(line, "libc6)") {
					if !strings.Contains(line, "=> "+simhost.Lib) {
						t.Errorf("the first entry of %s is %s", name, line)
					}
					break
				}
			}
		}
		simhost.Want(t, h.Sh(t, id, dlopen+"; nvidia-smi -L"),
			loaded, h.Driver.GPUs[0].UUID)
	}
	// The order matters: each step leaves the container changed.
	t.Run("at the start", func(t *testing.T) {
		lists(t)
		simhost.Want(t, h.Sh(t, id, "/test/cucount"), "count 1\n", h.Driver.GPUs[0].UUID)
		simhost.Want(t, h.Sh(t, id, "/test/dlopen libnvidia-ml.so.1 libcuda.so libnvidia-ptxjitcompiler.so.1"),
			"libnvidia-ml.so.1 OK", "libcuda.so OK", "libnvidia-ptxjitcompiler.so.1 OK")
	})
	t.Run("from Python", func(t *testing.T) {
		simhost.Want(t, h.Sh(t, id, "cat >/tmp/p.py <<'E'\n"+python+"E\npython3 /tmp/p.py"), "find_library libcuda.so.1\n", "python 13000\n")
	})
	t.Run("from the compiler", func(t *testing.T) {
		simhost.Want(t, h.Sh(t, id, "cat >/tmp/p.c <<'E'\n"+program+"E\ngcc -o /tmp/p /tmp/p.c -lcuda && /tmp/p"), "linked 13000\n")
	})
	t.Run("T68 after a later ldconfig", func(t *testing.T) {
		h.Sh(t, id, "ldconfig")
		lists(t)
	})
	t.Run("T68 after the installation of a package", func(t *testing.T) {
		simhost.Want(t, h.Sh(t, id, "dpkg -i "+images.LibfooDeb+" 2>&1"), "Processing triggers for libc-bin")
		simhost.Want(t, h.Sh(t, id, "/test/dlopen -s foo libfoo.so.1"), "foo=12")
		lists(t)
	})
	t.Run("T68 after the linker's own files were removed", func(t *testing.T) {
		h.Sh(t, id, "rm /etc/ld.so.cache && ldconfig")
		lists(t)
	})
}

func TestT69ProgramsOfEveryKindOfImageFindTheDriver(t *testing.T) {
	h := simhost.New(t, simhost.Options{})
	uuid := h.Driver.GPUs[0].UUID
	for _, test := range []struct {
		image, libc, dir, cache string
		script                  string
		wants                   []string
	}{
		{
			image: "glibc-nocache", libc: "glibc", dir: simhost.Multiarch, cache: "written",
			script: "ls /etc/ld.so.cache; /test/dlopen -s cuDriverGetVersion libcuda.so.1; /test/dlopen libm.so.6; nvidia-smi -L",
			wants:  []string{"/etc/ld.so.cache\n", loaded, "libm.so.6 OK", uuid},
		},
		{
			// A hostile libcuda in glibc-hwcaps does not win; the image's own library
			// there goes on winning.
			image: "glibc-hwcaps", libc: "glibc", dir: simhost.Multiarch, cache: "written",
			script: dlopen + "; /test/dlopen -s foo libfoo.so.1; nvidia-smi -L; ldconfig -p | grep -c hwcaps.*libcuda; true",
			wants:  []string{loaded, "/glibc-hwcaps/", "libfoo.so.1 foo=", uuid, "\n0\n"},
		},
		{
			image: "usrlib64", libc: "glibc", dir: "/usr/lib64", cache: "written",
			script: dlopen + "; /test/dlopen -s foo libfoo.so.1; ls /usr/lib64/libcuda.so.1; ldconfig && /test/dlopen libcuda.so.1; nvidia-smi -L",
			wants:  []string{loaded, "foo=1", "/usr/lib64/libcuda.so.1\n", "libcuda.so.1 OK " + simhost.Lib + "libcuda.so.1\n", uuid},
		},
		{
			image: "musl", libc: "musl", dir: "/lib", cache: "unchanged",
			script: "cat /etc/ld-musl-*.path; /test/dlopen -s cuDriverGetVersion libcuda.so.1; /test/dlopen libnvidia-ptxjitcompiler.so.1",
			wants: []string{
				"/lib:/usr/local/lib:/usr/lib\n" + strings.TrimSuffix(simhost.Lib, "/") + "\n", "libcuda.so.1 OK /lib/libcuda.so.1 " + driverValue,
				// Only the path file names where this one is.
				"libnvidia-ptxjitcompiler.so.1 OK " + simhost.Lib,
			},
		},
		{
			image: "busybox", libc: "", dir: "", cache: "unchanged",
			script: "ls " + simhost.Lib + " /usr/local/nvidia/bin; ls /etc; /test/opendev /dev/nvidiactl",
			wants:  []string{"libcuda.so." + h.Driver.Version + "\n", "libcuda.so.1\n", "nvidia-smi\n", "/dev/nvidiactl ENXIO"},
		},
		{
			image: "large", libc: "glibc", dir: simhost.Multiarch, cache: "written",
			script: dlopen + "; /test/dlopen -s foo libtest0000.so.1 libtest4999.so.1; ldconfig -p | grep -c libtest",
			wants:  []string{driverValue, "libtest0000.so.1 OK", "libtest4999.so.1 OK", "\n5000\n"},
		},
	} {
		t.Run(test.image, func(t *testing.T) {
			id := start(t, h, testenv.RunOptions{Image: h.Load(t, test.image)})
			plan := h.Record(t, id)
			if got := plan.Linker; got.LibC != test.libc || got.Directory != test.dir || got.Cache != test.cache {
				t.Errorf("recorded %+v", got)
			}
			if notes := strings.Join(plan.Notes, "\n"); strings.Contains(notes, "no C library") != (test.libc == "") {
				t.Errorf("notes: %s", notes)
			}
			out := h.Sh(t, id, test.script)
			simhost.Want(t, out, test.wants...)
			if strings.Contains(out, "666") {
				t.Errorf("the image's libcuda won:\n%s", out)
			}
		})
	}
	t.Run("with LD_LIBRARY_PATH as in CUDA images", func(t *testing.T) {
		id := start(t, h, testenv.RunOptions{Image: h.Load(t, "glibc-hwcaps"), Env: []string{"LD_LIBRARY_PATH=/usr/local/nvidia/lib:/usr/local/nvidia/lib64"}})
		simhost.Want(t, h.Sh(t, id, dlopen+"; nvidia-smi -L"), loaded, uuid)
	})
	t.Run("with LD_LIBRARY_PATH at a libcuda of the image", func(t *testing.T) {
		id := start(t, h, testenv.RunOptions{Image: h.Load(t, "glibc-hwcaps"), Env: []string{"LD_LIBRARY_PATH=" + simhost.Multiarch}})
		simhost.Want(t, h.Sh(t, id, dlopen), fmt.Sprintf("cuDriverGetVersion=%d", images.HostileValue))
		lines := h.LogLines(id, "warning")
		if len(lines) == 0 || !strings.Contains(lines[0], "programs load libcuda.so.1 of the image from") || !strings.Contains(lines[0], simhost.Multiarch+"/glibc-hwcaps/") {
			t.Errorf("warnings %q", lines)
		}
	})
	t.Run("with a read-only root", func(t *testing.T) {
		for _, image := range []string{"glibc-nocache", "glibc-hwcaps", "musl", "busybox"} {
			id := start(t, h, testenv.RunOptions{Image: h.Load(t, image), ReadOnly: true})
			simhost.Want(t, h.Sh(t, id, "touch /x 2>&1; ls "+simhost.Lib), "Read-only file system", "libcuda.so.1\n")
			if image != "busybox" {
				simhost.Want(t, h.Sh(t, id, dlopen), "libcuda.so.1 OK", driverValue)
			}
		}
	})
	t.Run("as a user that is not root", func(t *testing.T) {
		id := start(t, h, testenv.RunOptions{Image: h.Load(t, "glibc-hwcaps"), User: "1000"})
		node := fmt.Sprintf("/dev/nvidia%d", h.Driver.GPUs[0].Minor)
		out := h.Sh(t, id, "id -u; /test/dlopen -s cuDriverGetVersion libcuda.so.1; nvidia-smi -L; /test/opendev "+node+" /dev/nvidiactl; test -w "+node+" && echo writable; ldconfig -p | grep libcuda.so.1; cat /etc/ld.so.conf.d/000-*")
		simhost.Want(t, out, "1000\n", driverValue, uuid, "writable\n", "=> "+simhost.Lib, "\n"+strings.TrimSuffix(simhost.Lib, "/")+"\n")
		if strings.Contains(out, "EPERM") || strings.Contains(out, "EACCES") {
			t.Errorf("a node cannot be used:\n%s", out)
		}
	})
}

func TestADirectoryAsRootFileSystem(t *testing.T) {
	h := simhost.New(t, simhost.Options{})
	const look = dlopen + "; nvidia-smi -L"
	works := func(t *testing.T, id string) {
		t.Helper()
		simhost.Want(t, h.Sh(t, id, look), loaded, h.Driver.GPUs[0].UUID)
	}
	t.Run("shared by two containers, and used again, it holds the same files", func(t *testing.T) {
		dir := h.Tree(t, "glibc-hwcaps")
		one := start(t, h, testenv.RunOptions{RootfsDir: dir})
		first := simhost.Files(t, dir)
		two := start(t, h, testenv.RunOptions{RootfsDir: dir})
		works(t, one)
		works(t, two)
		h.Gone(t, one)
		works(t, two)
		third := start(t, h, testenv.RunOptions{RootfsDir: dir})
		works(t, third)
		simhost.Same(t, "the files", first, simhost.Files(t, dir))
	})
	t.Run("on a read-only mount the cache is mounted instead", func(t *testing.T) {
		dir := h.Tree(t, "glibc-hwcaps")
		cache := filepath.Join(dir, "etc/ld.so.cache")
		before, err := os.ReadFile(cache)
		if err != nil {
			t.Fatal(err)
		}
		// Once writable, so that the mount points exist; then read-only.
		h.MustRun(t, testenv.RunOptions{RootfsDir: dir, Env: []string{one}, Args: []string{"true"}})
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
		id := start(t, h, testenv.RunOptions{RootfsDir: ro, ReadOnly: true})
		if plan := h.Record(t, id); plan.Linker.Cache != "mounted" || !strings.Contains(strings.Join(plan.Notes, "\n"), "is not written in the image") {
			t.Errorf("recorded %+v %q", plan.Linker, plan.Notes)
		}
		works(t, id)
		simhost.Want(t, h.Sh(t, id, "ldconfig -p | grep libcuda.so.1; /test/dlopen -s foo libfoo.so.1"), "=> "+simhost.Lib, "/glibc-hwcaps/", "libfoo.so.1 foo=")
		if after, err := os.ReadFile(cache); err != nil || string(after) != string(before) {
			t.Errorf("the image's own cache has changed: %v", err)
		}
		h.Gone(t, id)
	})
	t.Run("on a read-only mount without the driver's directory it is refused", func(t *testing.T) {
		ro := h.Tree(t, "glibc-hwcaps")
		if err := unix.Mount(ro, ro, "", unix.MS_BIND, ""); err != nil {
			t.Fatal(err)
		}
		defer unix.Unmount(ro, unix.MNT_DETACH)
		if err := unix.Mount("", ro, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
			t.Fatal(err)
		}
		r := h.Run(t, testenv.RunOptions{RootfsDir: ro, Env: []string{one}, Args: []string{"true"}})
		if r.ExitCode == 0 {
			t.Error("it started")
		}
		simhost.Want(t, r.Error, "nvidia: ", "the image has no directory /usr/local/nvidia", "read-only file system", "add that directory to the image")
	})
	t.Run("with a stub of libcuda in its cache", func(t *testing.T) {
		dir := h.Tree(t, "glibc-hwcaps", images.Text("etc/ld.so.conf.d/000-aaa.conf", 0o644, "/usr/local/cuda/lib64/stubs\n"))
		hostile, err := filepath.Glob(filepath.Join(dir, simhost.Multiarch, "glibc-hwcaps/*/libcuda.so.1"))
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
		if out, err := exec.Command("/sbin/ldconfig", "-r", dir).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		plain := h.MustRun(t, testenv.RunOptions{RootfsDir: dir, Runtime: testenv.StockRuntime, Args: []string{"/test/dlopen", "-s", "cuDriverGetVersion", "libcuda.so.1"}})
		simhost.Want(t, plain, "stubs/libcuda.so.1 cuDriverGetVersion=666")
		works(t, start(t, h, testenv.RunOptions{RootfsDir: dir}))
	})
}
