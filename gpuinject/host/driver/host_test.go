package driver

import (
	"debug/elf"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/ldcache"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simdriver/elffile"
)

const version = "580.159.04"

// fakeRoot is a driver root.
type fakeRoot struct {
	t    testing.TB
	dir  string
	host config.Host
	// version is that of the loaded kernel module.
	version string
}

func newRoot(t testing.TB) *fakeRoot {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("driver files must be owned by root: run these tests as root")
	}
	dir := t.TempDir()
	return &fakeRoot{t, dir, config.Host{DriverRoot: dir}, version}
}

func (r *fakeRoot) check(err error) {
	r.t.Helper()
	if err != nil {
		r.t.Fatal(err)
	}
}

// write makes a file and returns its path on the host.
func (r *fakeRoot) write(name string, data []byte, mode os.FileMode) string {
	r.t.Helper()
	path := filepath.Join(r.dir, name)
	r.check(os.MkdirAll(filepath.Dir(path), 0o755))
	r.check(os.WriteFile(path, data, 0o644))
	r.check(os.Chmod(path, mode))
	return path
}

func (r *fakeRoot) link(name, target string) {
	r.t.Helper()
	path := filepath.Join(r.dir, name)
	r.check(os.MkdirAll(filepath.Dir(path), 0o755))
	r.check(os.Symlink(target, path))
}

// lib makes a 64-bit library with a SONAME and the link of that name.
func (r *fakeRoot) lib(name, soname string) string {
	r.t.Helper()
	path := r.write(name, elf64(soname), 0o755)
	if soname != filepath.Base(name) {
		os.Symlink(filepath.Base(name), filepath.Join(filepath.Dir(path), soname))
	}
	return path
}

// core makes the two libraries that compute and utility need.
func (r *fakeRoot) core(dir, version string) {
	r.t.Helper()
	r.lib(dir+"/libcuda.so."+version, "libcuda.so.1")
	r.lib(dir+"/libnvidia-ml.so."+version, "libnvidia-ml.so.1")
}

// cache writes an ld.so.cache that lists SONAMEs at paths; of one name in this order.
func (r *fakeRoot) cache(paths ...string) {
	r.t.Helper()
	flags := ldcache.FlagsFor(elf.ELFCLASS64, arch.machine64)
	var entries []ldcache.Entry
	for _, p := range paths {
		entries = append(entries, ldcache.Entry{Name: filepath.Base(p), Path: p, Flags: flags})
	}
	c := &ldcache.Cache{}
	c.Prepend(entries)
	r.write("etc/ld.so.cache", c.Encode(), 0o644)
}

func (r *fakeRoot) discover() Files {
	r.t.Helper()
	files, err := Discover(r.host, r.version)
	r.check(err)
	return files
}

// settled discovers after a pause that lets Fresh trust the times of files.
func (r *fakeRoot) settled() Files {
	r.t.Helper()
	time.Sleep(2 * settling)
	return r.discover()
}

func libraryNames(files Files) []string {
	var names []string
	for _, l := range files.Libraries {
		names = append(names, filepath.Join(l.Subdir, l.Name))
	}
	return names
}

func (r *fakeRoot) library(files Files, name string) Library {
	r.t.Helper()
	for _, l := range files.Libraries {
		if l.Name == name {
			return l
		}
	}
	r.t.Fatalf("no %s in %v; refused %v", name, libraryNames(files), files.Refused)
	return Library{}
}

// refusal returns why the file with this base name was refused.
func refusal(files Files, base string) string {
	for _, r := range files.Refused {
		if filepath.Base(r.Path) == base {
			return r.Reason
		}
	}
	return ""
}

func elf64(soname string) []byte {
	return elffile.Library(elf.ELFCLASS64, arch.machine64, soname)
}

func elf32(soname string) []byte {
	return elffile.Library(elf.ELFCLASS32, arch.machine32, soname)
}

// says fails unless err has all of the words and one line.
func says(t *testing.T, err error, words ...string) {
	t.Helper()
	if err == nil {
		t.Fatal("no error")
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("%q does not say %q", err, w)
		}
	}
	if strings.Contains(err.Error(), "\n") {
		t.Errorf("%q has several lines", err)
	}
}
