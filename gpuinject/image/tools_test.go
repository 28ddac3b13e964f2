package image

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/ldcache"
)

// command runs a program of the Debian package install and returns its standard output.
func command(t testing.TB, install, name string, args ...string) string {
	t.Helper()
	var stdout, stderr bytes.Buffer
	cmd := exec.Command(name, args...)
	if cmd.Err != nil { // not in the PATH of every user
		cmd = exec.Command("/sbin/"+name, args...)
	}
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C"}
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		t.Fatalf("%s %q: %v (apt-get install %s)\n%s%s", name, args, err, install, stdout.Bytes(), stderr.Bytes())
	}
	return stdout.String()
}

func ldconfig(t testing.TB, args ...string) string {
	t.Helper()
	return command(t, "libc-bin", "ldconfig", args...)
}

func gcc(t testing.TB, source string, args ...string) {
	t.Helper()
	src := filepath.Join(t.TempDir(), "source.c")
	write(t, src, source)
	command(t, "gcc libc6-dev", "gcc", append(args, src)...)
}

// library builds a shared library that says who it is.
func library(t testing.TB, file, soname, says string, args ...string) {
	t.Helper()
	mkdir(t, filepath.Dir(file))
	args = append([]string{"-shared", "-fPIC", "-nostdlib", "-o", file}, args...)
	if soname != "" {
		args = append(args, "-Wl,-soname,"+soname)
	}
	gcc(t, fmt.Sprintf("const char *who(void) { return %q; }\n", says), args...)
}

const (
	compatOwner = "NVIDIA Corporation"
	goodNote    = `{"Format":1,"CUDA Version":"13.1","Driver":[535,550,570,575,580,590],"Device":[1,2,7]}`
)

// compatLibrary builds a libcuda.so that says "compat", with NVIDIA's note of the given text.
func compatLibrary(t testing.TB, file, note string) {
	t.Helper()
	mkdir(t, filepath.Dir(file))
	asm := fmt.Sprintf(`.section .note.cuda.fwd_compatibility,"a",%%note
.balign 4
.long %d, %d, 1
.asciz %q
.balign 4
.ascii %q
.balign 4
.previous
`, len(compatOwner)+1, len(note), compatOwner, note)
	gcc(t, fmt.Sprintf("asm(%q);\nconst char *who(void) { return \"compat\"; }\n", asm),
		"-shared", "-fPIC", "-nostdlib", "-o", file, "-Wl,-soname,libcuda.so.1")
}

// libcFixture builds a small libc.so.6 or musl loader.
func libcFixture(t testing.TB, soname string, args ...string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "libc")
	library(t, file, soname, "libc", args...)
	return read(t, file)
}

// otherMachine returns a library as one for SPARC.
func otherMachine(library string) string {
	b := []byte(library)
	binary.LittleEndian.PutUint16(b[18:], 2)
	return string(b)
}

func mkdir(t testing.TB, dir string) {
	t.Helper()
	check(t, os.MkdirAll(dir, 0o755))
}

func write(t testing.TB, file, text string) {
	t.Helper()
	mkdir(t, filepath.Dir(file))
	check(t, os.WriteFile(file, []byte(text), 0o644))
}

func symlink(t testing.TB, target, name string) {
	t.Helper()
	mkdir(t, filepath.Dir(name))
	check(t, os.Symlink(target, name))
}

func fifo(t testing.TB, name string) {
	t.Helper()
	mkdir(t, filepath.Dir(name))
	check(t, unix.Mkfifo(name, 0o644))
}

// sparse makes a file of size bytes without a block.
func sparse(t testing.TB, name string, size int64) {
	t.Helper()
	write(t, name, "")
	check(t, os.Truncate(name, size))
}

func read(t testing.TB, file string) string {
	t.Helper()
	data, err := os.ReadFile(file)
	check(t, err)
	return string(data)
}

func openRoot(t testing.TB, dir string) *Root {
	t.Helper()
	root, err := Open(dir)
	check(t, err)
	t.Cleanup(func() { root.Close() })
	return root
}

// hostLib is the directory where an image for this machine has its libc.
var hostLib = map[string]string{"amd64": "/usr/lib/x86_64-linux-gnu", "arm64": "/usr/lib/aarch64-linux-gnu"}[runtime.GOARCH]

const driverDir = "/usr/local/nvidia/lib64"

// lib is a library of the driver.
func lib(name string) ldcache.Entry { return entry(name, driverDir+"/"+name) }

func entry(name, path string) ldcache.Entry {
	return ldcache.Entry{Name: name, Path: path, Flags: abi64.flags()}
}

// apply inspects an image, writes what LoaderFiles says, and proves that doing so again changes
// nothing.
func apply(t testing.TB, dir, hostDriver string, dirs []string, libs []ldcache.Entry) (Image, []string) {
	t.Helper()
	root := openRoot(t, dir)
	img := root.Inspect(hostDriver)
	files, notes := root.LoaderFiles(img, dirs, libs)
	for _, f := range files {
		check(t, root.WriteFile(f.Path, f.Data))
	}
	again, _ := root.LoaderFiles(img, dirs, libs)
	for _, f := range again {
		if got := read(t, filepath.Join(dir, f.Path)); got != string(f.Data) {
			t.Errorf("a second run changes %s:\n%q\n%q", f.Path, got, f.Data)
		}
	}
	return img, notes
}

// readCache reads the loader's cache of an image.
func readCache(t testing.TB, dir string) *ldcache.Cache {
	t.Helper()
	c, err := ldcache.ParseCache([]byte(read(t, dir+CachePath)))
	check(t, err)
	return c
}

// paths are the paths of a name in the order of a cache.
func paths(c *ldcache.Cache, name string) []string {
	var out []string
	for _, e := range c.Entries {
		if e.Name == name {
			out = append(out, e.Path)
		}
	}
	return out
}
