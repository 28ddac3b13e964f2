package driver

import (
	"debug/elf"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/ldcache"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testtree"
)

const version = "580.159.04"

// fakeRoot is a driver root.
type fakeRoot struct {
	testtree.Root
	host config.Host
	// version is that of the loaded kernel module.
	version string
}

func newRoot(t testing.TB) *fakeRoot {
	t.Helper()
	root := testtree.NewRoot(t)
	return &fakeRoot{root, config.Host{DriverRoot: root.Dir}, version}
}

// lib makes a 64-bit library with a SONAME and the link of that name.
func (r *fakeRoot) lib(name, soname string) string {
	r.Helper()
	path := r.Write(name, elf64(soname))
	if soname != filepath.Base(name) {
		os.Symlink(filepath.Base(name), filepath.Join(filepath.Dir(path), soname))
	}
	return path
}

// core makes the two libraries that compute and utility need.
func (r *fakeRoot) core(dir, version string) {
	r.Helper()
	r.lib(dir+"/libcuda.so."+version, "libcuda.so.1")
	r.lib(dir+"/libnvidia-ml.so."+version, "libnvidia-ml.so.1")
}

// cache writes an ld.so.cache that lists SONAMEs at paths; of one name in this order.
func (r *fakeRoot) cache(paths ...string) {
	r.Helper()
	flags := ldcache.ABI64.Flags
	var entries []ldcache.Entry
	for _, p := range paths {
		entries = append(entries, ldcache.Entry{Name: filepath.Base(p), Path: p, Flags: flags})
	}
	c := &ldcache.Cache{}
	c.Prepend(entries)
	r.Write("etc/ld.so.cache", string(c.Encode()))
}

func (r *fakeRoot) discover() Files {
	r.Helper()
	files, err := Discover(r.host, r.version)
	r.Check(err)
	return files
}

// settled discovers after a pause, because Fresh does not trust the timestamps of files that were
// just written. The kernel has no event for that.
func (r *fakeRoot) settled() Files {
	r.Helper()
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
	r.Helper()
	for _, l := range files.Libraries {
		if l.Name == name {
			return l
		}
	}
	r.Fatalf("no %s in %v; refused %v", name, libraryNames(files), files.Refused)
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

func elf64(soname string) string {
	return testtree.Library(elf.ELFCLASS64, ldcache.ABI64.Machine, soname)
}

func elf32(soname string) string {
	return testtree.Library(elf.ELFCLASS32, ldcache.ABI32.Machine, soname)
}
