package image

import (
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/ldcache"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testtree"
)

const goodNote = `{"Format":1,"CUDA Version":"13.1","Driver":[535,550,570,575,580,590],"Device":[1,2,7]}`

// compatLibrary is a libcuda.so with NVIDIA's note of the given text.
func compatLibrary(note string) string {
	section := testtree.Note("NVIDIA Corporation", note)
	return string(testtree.WithNote(ldcache.ABI64.Machine, "libcuda.so.1", ".note.cuda.fwd_compatibility", section))
}

// library is a library of an ABI.
func library(a ldcache.ABI, soname string) string {
	return testtree.Library(a.Class, a.Machine, soname)
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
	return ldcache.Entry{Name: name, Path: path, Flags: ldcache.ABI64.Flags}
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
