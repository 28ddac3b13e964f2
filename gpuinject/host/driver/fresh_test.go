package driver

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/ldcache"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testtree"
)

func TestFresh(t *testing.T) {
	lib := "/usr/local/nvidia/lib64/libcuda.so." + version
	for _, tt := range []struct {
		name   string
		fresh  bool
		change func(r *fakeRoot)
	}{
		{"nothing changed", true, func(*fakeRoot) {}},
		{"something else changed", true, func(r *fakeRoot) { r.Write("etc/resolv.conf", ""); r.Write("var/lib/x", "") }},
		{"a library was read", true, func(r *fakeRoot) { os.ReadFile(r.Dir + lib) }},
		{"a library was touched", true, func(r *fakeRoot) { r.Check(os.Chtimes(r.Dir+lib, time.Now(), time.Now())) }},
		{"a library was overwritten in place", true, func(r *fakeRoot) {
			f, err := os.OpenFile(r.Dir+lib, os.O_WRONLY, 0)
			r.Check(err)
			f.WriteAt([]byte{0x7f}, 0)
			r.Check(f.Close())
		}},
		{"a library was replaced by rename", false, func(r *fakeRoot) {
			r.Write("new", elf64("libcuda.so.1"))
			r.Check(os.Rename(r.Dir+"/new", r.Dir+lib))
		}},
		{"a library was removed", false, func(r *fakeRoot) { r.Check(os.Remove(r.Dir + lib)) }},
		{"an upgrade added the next version beside it", false, func(r *fakeRoot) { r.core("usr/local/nvidia/lib64", "580.200.01") }},
		{"the whole driver directory was replaced", false, func(r *fakeRoot) {
			r.Check(os.Rename(r.Dir+"/usr/local/nvidia", r.Dir+"/usr/local/old"))
			r.core("usr/local/nvidia/lib64", version)
		}},
		{"a directory that was absent appeared", false, func(r *fakeRoot) { r.core("run/opengl-driver/lib", version) }},
		{"a file that a link in another directory leads to was replaced", false, func(r *fakeRoot) {
			r.Check(os.Remove(r.Dir + "/opt/y/middle"))
			r.Link("opt/y/middle", "/opt/y/other")
		}},
		{"a directory above was replaced by one like it", false, func(r *fakeRoot) {
			r.Check(os.Rename(r.Dir+"/usr/local", r.Dir+"/usr/before"))
			r.core("usr/local/nvidia/lib64", version)
		}},
		{"ld.so.cache was written", false, func(r *fakeRoot) { r.cache("/lib/libcuda.so.1") }},
		{"a refused library was repaired", false, func(r *fakeRoot) { r.Check(os.Chmod(r.Dir+"/usr/lib64/libnvidia-ngx.so."+version, 0o755)) }},
		{"what a dangling link names appeared", false, func(r *fakeRoot) { r.lib("opt/x/libnvidia-cbl.so."+version, "libnvidia-cbl.so."+version) }},
		{"nvidia-smi was replaced", false, func(r *fakeRoot) {
			r.Check(os.Remove(r.Dir + "/usr/local/nvidia/bin/nvidia-smi"))
			r.Write("usr/local/nvidia/bin/nvidia-smi", "x")
		}},
		{"an absent program appeared", false, func(r *fakeRoot) { r.Write("usr/bin/nv-fabricmanager", "") }},
		{"an absent data file appeared", false, func(r *fakeRoot) { r.Write("etc/OpenCL/vendors/nvidia.icd", "") }},
		{"a data file appeared in a directory that was there", false, func(r *fakeRoot) { r.Write("usr/share/vulkan/icd.d/nvidia_icd.json", "") }},
		{"the configuration names another directory", false, func(r *fakeRoot) { r.host.DriverLibraries = []string{"/opt"} }},
		{"the configuration names another root", false, func(r *fakeRoot) { r.host.DriverRoot = r.Dir + "/usr" }},
		{"the loaded kernel module is another version", false, func(r *fakeRoot) { r.version = "580.200.01" }},
		{"the driver root went away", false, func(r *fakeRoot) { r.Check(os.Rename(r.Dir, r.Dir+"-gone")) }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r := squashfs(t)
			r.Check(os.Chmod(r.Write("usr/lib64/libnvidia-ngx.so."+version, elf64("")), 0o757))
			r.Link("usr/lib64/libnvidia-cbl.so."+version, "/opt/x/libnvidia-cbl.so."+version)
			r.Write("usr/bin/sh", "")
			r.Write("var/lib/y", "")
			r.Write("etc/hosts", "")
			r.lib("opt/z/libnvidia-cfg.so."+version, "libnvidia-cfg.so.1")
			r.lib("opt/y/other", "libnvidia-cfg.so.1")
			r.Link("opt/y/middle", "/opt/z/libnvidia-cfg.so."+version)
			r.Link("usr/lib64/libnvidia-cfg.so."+version, "/opt/y/middle")
			r.Write("usr/share/vulkan/icd.d/intel_icd.json", "")
			found := r.settled()
			data, err := json.Marshal(found)
			r.Check(err)
			var files Files
			r.Check(json.Unmarshal(data, &files))
			if !reflect.DeepEqual(found, files) {
				t.Errorf("stored %+v, loaded %+v", found, files)
			}
			if !files.Fresh(r.host, version) {
				t.Fatal("not fresh before the change")
			}
			tt.change(r)
			if got := files.Fresh(r.host, r.version); got != tt.fresh {
				t.Errorf("fresh is %v", got)
			}
		})
	}
	t.Run("a manifest that was changed in place", func(t *testing.T) {
		r := squashfs(t)
		manifest := r.Write("etc/OpenCL/vendors/nvidia.icd", "libnvidia-opencl.so.1\n")
		files := r.settled()
		if !files.Fresh(r.host, version) {
			t.Fatal("not fresh")
		}
		r.Check(os.WriteFile(manifest, []byte("/opt/lib/libnvidia-opencl.so.1\n"), 0o644))
		if files.Fresh(r.host, version) {
			t.Error("fresh")
		}
	})
	t.Run("a driver root that is a link is stale when the link changes", func(t *testing.T) {
		a, b := squashfs(t), squashfs(t)
		link := filepath.Join(t.TempDir(), "driver")
		a.Check(os.Symlink(a.Dir, link))
		a.host.DriverRoot = link
		files := a.settled()
		if !files.Fresh(a.host, version) {
			t.Fatal("not fresh")
		}
		a.Check(os.Remove(link))
		a.Check(os.Symlink(b.Dir, link))
		if files.Fresh(a.host, version) {
			t.Error("fresh")
		}
	})
	t.Run("absolute links are followed in the driver root", func(t *testing.T) {
		r := newRoot(t)
		r.core("opt/real", version)
		r.Link("usr/lib64", "/opt/real")
		r.Link("run/opengl-driver", "/nowhere")
		files := r.settled()
		if len(files.Libraries) != 2 || !files.Fresh(r.host, version) {
			t.Fatalf("not fresh: %v", libraryNames(files))
		}
		r.core("nowhere/lib", version)
		if files.Fresh(r.host, version) {
			t.Error("fresh although the link leads somewhere in the root now")
		}
	})
	t.Run("a directory that was changed at the same moment is not trusted", func(t *testing.T) {
		r := squashfs(t)
		r.settled()
		for range 50 { // the search may begin too late
			r.Write(filepath.Dir(lib)+"/new", "")
			if files := r.discover(); !files.Fresh(r.host, version) {
				return
			}
			r.Check(os.Remove(filepath.Join(r.Dir, filepath.Dir(lib), "new")))
		}
		t.Error("fresh")
	})
	t.Run("the state of a place without links is the same outside the root", func(t *testing.T) {
		r := squashfs(t)
		tree, err := openTree(r.Dir)
		r.Check(err)
		defer tree.Close()
		for _, name := range []string{lib, filepath.Dir(lib), "/", "/none", "/usr/local/none/x"} {
			if got, want := tree.stampOutside(name), tree.stamp(name); got != want {
				t.Errorf("%s: %+v, in the root %+v", name, got, want)
			}
		}
	})
	t.Run("the zero value is not fresh", func(t *testing.T) {
		if (Files{}).Fresh(config.Host{}, "") {
			t.Error("fresh")
		}
	})
}

// A view is made of all files of the driver and of nothing else.
func TestIdentityIsOfEveryFileOfTheDriverAndNothingElse(t *testing.T) {
	r := squashfs(t)
	files := r.settled()
	r.Write("usr/local/nvidia/lib64/libunrelated.so", "")
	r.Write("etc/ld.so.cache", "x")
	before := r.discover()
	if files.Fresh(r.host, version) || before.Identity != files.Identity {
		t.Fatalf("a file beside the driver: identity %s, then %s", files.Identity, before.Identity)
	}
	for _, name := range []string{before.Libraries[0].Path, before.Libraries[9].Path, before.Binaries[0].Path, before.Data[0].Path} {
		data, err := os.ReadFile(name)
		r.Check(err)
		r.Check(os.WriteFile(name+".new", data, 0o755))
		r.Check(os.Rename(name+".new", name))
		after := r.discover()
		if after.Identity == before.Identity {
			t.Errorf("%s was replaced, and the identity is the same", name)
		}
		before = after
	}
}

// A host that an older shim has searched is searched again only if format is raised.
func TestTheFormatFollowsTheTables(t *testing.T) {
	const tablesFormat, tablesSum = 6, "237af661adc05ceb"
	var text strings.Builder
	fmt.Fprint(&text, kinds, neverGiven, libraryDirs(), binaryKinds, expectedPrograms, binaryDirs, dataDirs, xorgDirs)
	for _, k := range dataKinds {
		fmt.Fprint(&text, k.dest, k.dir, k.names, k.ordered, k.capabilities, k.library, k.also, k.needs)
	}
	plain := strings.NewReplacer(ldcache.ABI64.Triple, "", ldcache.ABI32.Triple, "", ldcache.ABI64.Arch, "").Replace(text.String())
	if sum := fmt.Sprintf("%x", sha256.Sum256([]byte(plain)))[:16]; format != tablesFormat || sum != tablesSum {
		t.Errorf("format is %d, the sum of the tables %s: if the tables changed, raise format in fresh.go; then write both here", format, sum)
	}
}

// A name may go; the content must stay.
func TestAStampKnowsTheContent(t *testing.T) {
	name := filepath.Join(t.TempDir(), "libcuda.so.1.2")
	testtree.Check(t, os.WriteFile(name, []byte("old"), 0o644))
	f, err := os.Open(name)
	testtree.Check(t, err)
	defer f.Close()
	stat := func() (st unix.Stat_t) {
		testtree.Check(t, unix.Fstat(int(f.Fd()), &st))
		return st
	}
	then := newStamp(name, stat())
	testtree.Check(t, os.Rename(name, name+".old"))
	if !then.IsContentOf(stat()) {
		t.Error("another name is another content")
	}
	testtree.Check(t, os.WriteFile(name+".old", []byte("new"), 0o644))
	testtree.Check(t, os.Chtimes(name+".old", time.Time{}, time.Unix(1, 0)))
	if then.IsContentOf(stat()) || (Stamp{}).IsContentOf(unix.Stat_t{}) {
		t.Error("a changed file, or none, counts as the same content")
	}
}

// What a container needs is the same in the short list, which is a fraction of the other.
func TestTheShortListHasWhatAContainerNeeds(t *testing.T) {
	r := squashfs(t)
	r.Check(os.Remove(r.Dir + "/usr/local/nvidia/lib64/libnvidia-ml.so." + version))
	all := r.settled()
	for _, caps := range [][]string{{}, {"compute"}, {"compute", "utility"}, {"video"}, {"display", "utility"}, {"compat32", "compute", "graphics", "ngx", "utility", "video"}} {
		data, err := json.Marshal(all.Short(caps))
		r.Check(err)
		var short Files
		r.Check(json.Unmarshal(data, &short))
		want, got := all.For(caps), short.For(caps)
		if !reflect.DeepEqual(want.Libraries, got.Libraries) || !reflect.DeepEqual(want.Data, got.Data) || !reflect.DeepEqual(want.Binaries, got.Binaries) {
			t.Errorf("%v: %v, want %v", caps, got, want)
		}
		if fmt.Sprint(all.Check(caps)) != fmt.Sprint(short.Check(caps)) || all.Key() != short.Key() || !short.Fresh(r.host, version) {
			t.Errorf("%v: %v, want %v; key %s, want %s; fresh: %v", caps, short.Check(caps), all.Check(caps), short.Key(), all.Key(), short.Fresh(r.host, version))
		}
		if len(short.Stamps) > 0 {
			t.Errorf("%v: the stamps of all files are in it", caps)
		}
	}
}

// A host keeps the checksum over an update of the shim.
func TestTheTextOfAStamp(t *testing.T) {
	for _, s := range []Stamp{{}, {Path: "/usr/lib", Dev: 1 << 63, Inode: 2, Size: -1, Ctime: 1795888168000000001, Mtime: -5}} {
		if got, want := string(s.append(nil)), fmt.Sprintln(s); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
