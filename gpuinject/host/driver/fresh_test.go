package driver

import (
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"testing"
	"time"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
)

func TestFresh(t *testing.T) {
	lib := "/usr/local/nvidia/lib64/libcuda.so." + version
	for _, tt := range []struct {
		name   string
		fresh  bool
		change func(r *fakeRoot)
	}{
		{"nothing changed", true, func(*fakeRoot) {}},
		{"something else changed", true, func(r *fakeRoot) { r.write("etc/resolv.conf", nil, 0o644); r.write("var/lib/x", nil, 0o644) }},
		{"a library was read", true, func(r *fakeRoot) { os.ReadFile(r.dir + lib) }},
		{"a library was touched", false, func(r *fakeRoot) { r.check(os.Chtimes(r.dir+lib, time.Now(), time.Now())) }},
		{"a library was overwritten in place with as many bytes and its old times", false, func(r *fakeRoot) {
			st, err := os.Stat(r.dir + lib)
			r.check(err)
			f, err := os.OpenFile(r.dir+lib, os.O_WRONLY, 0)
			r.check(err)
			f.WriteAt([]byte{0x7f}, 0)
			r.check(f.Close())
			r.check(os.Chtimes(r.dir+lib, st.ModTime(), st.ModTime()))
		}},
		{"a library was replaced by rename", false, func(r *fakeRoot) {
			r.write("new", elf64("libcuda.so.1"), 0o755)
			r.check(os.Rename(r.dir+"/new", r.dir+lib))
		}},
		{"a library was removed", false, func(r *fakeRoot) { r.check(os.Remove(r.dir + lib)) }},
		{"an upgrade added the next version beside it", false, func(r *fakeRoot) { r.core("usr/local/nvidia/lib64", "580.200.01") }},
		{"the whole driver directory was replaced", false, func(r *fakeRoot) {
			r.check(os.Rename(r.dir+"/usr/local/nvidia", r.dir+"/usr/local/old"))
			r.core("usr/local/nvidia/lib64", version)
		}},
		{"a directory that was absent appeared", false, func(r *fakeRoot) { r.core("run/opengl-driver/lib", version) }},
		{"ld.so.cache was written", false, func(r *fakeRoot) { r.cache("/lib/libcuda.so.1") }},
		{"a refused library was repaired", false, func(r *fakeRoot) { r.check(os.Chmod(r.dir+"/usr/lib64/libnvidia-ngx.so."+version, 0o755)) }},
		{"what a dangling link names appeared", false, func(r *fakeRoot) { r.lib("opt/x/libnvidia-cbl.so."+version, "libnvidia-cbl.so."+version) }},
		{"nvidia-smi was replaced", false, func(r *fakeRoot) {
			r.check(os.Remove(r.dir + "/usr/local/nvidia/bin/nvidia-smi"))
			r.write("usr/local/nvidia/bin/nvidia-smi", []byte("x"), 0o755)
		}},
		{"an absent program appeared", false, func(r *fakeRoot) { r.write("usr/bin/nv-fabricmanager", nil, 0o755) }},
		{"an absent data file appeared", false, func(r *fakeRoot) { r.write("etc/OpenCL/vendors/nvidia.icd", nil, 0o644) }},
		{"a data file appeared in a directory that was there", false, func(r *fakeRoot) { r.write("usr/share/vulkan/icd.d/nvidia_icd.json", nil, 0o644) }},
		{"the configuration names another directory", false, func(r *fakeRoot) { r.host.DriverLibraries = []string{"/opt"} }},
		{"the configuration names another root", false, func(r *fakeRoot) { r.host.DriverRoot = r.dir + "/usr" }},
		{"the loaded kernel module is another version", false, func(r *fakeRoot) { r.version = "580.200.01" }},
		{"the driver root went away", false, func(r *fakeRoot) { r.check(os.Rename(r.dir, r.dir+"-gone")) }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r := squashfs(t)
			r.write("usr/lib64/libnvidia-ngx.so."+version, elf64(""), 0o757)
			r.link("usr/lib64/libnvidia-cbl.so."+version, "/opt/x/libnvidia-cbl.so."+version)
			r.write("usr/bin/sh", nil, 0o755)
			r.write("usr/share/vulkan/icd.d/intel_icd.json", nil, 0o644)
			found := r.settled()
			data, err := json.Marshal(found)
			r.check(err)
			var files Files
			r.check(json.Unmarshal(data, &files))
			if !reflect.DeepEqual(found, files) {
				t.Errorf("stored %+v, loaded %+v", found, files)
			}
			if !files.Fresh(r.host, version, false) {
				t.Fatal("not fresh before the change")
			}
			tt.change(r)
			if got := files.Fresh(r.host, r.version, false); got != tt.fresh {
				t.Errorf("fresh is %v", got)
			}
		})
	}
	t.Run("a driver root that is a link is stale when the link changes", func(t *testing.T) {
		a, b := squashfs(t), squashfs(t)
		link := filepath.Join(t.TempDir(), "driver")
		a.check(os.Symlink(a.dir, link))
		a.host.DriverRoot = link
		files := a.settled()
		if !files.Fresh(a.host, version, false) {
			t.Fatal("not fresh")
		}
		a.check(os.Remove(link))
		a.check(os.Symlink(b.dir, link))
		if files.Fresh(a.host, version, false) {
			t.Error("fresh")
		}
	})
	t.Run("absolute links are followed in the driver root", func(t *testing.T) {
		r := newRoot(t)
		r.core("opt/real", version)
		r.link("usr/lib64", "/opt/real")
		r.link("run/opengl-driver", "/nowhere")
		files := r.settled()
		if len(files.Libraries) != 2 || !files.Fresh(r.host, version, false) {
			t.Fatalf("not fresh: %v", libraryNames(files))
		}
		r.core("nowhere/lib", version)
		if files.Fresh(r.host, version, false) {
			t.Error("fresh although the link leads somewhere in the root now")
		}
	})
	t.Run("files that were written at the same moment are not trusted", func(t *testing.T) {
		r := squashfs(t)
		r.settled()
		r.check(os.Chtimes(r.dir+lib, time.Now(), time.Now()))
		if files := r.discover(); files.Fresh(r.host, version, false) {
			t.Error("fresh")
		}
	})
	t.Run("the zero value is not fresh", func(t *testing.T) {
		if (Files{}).Fresh(config.Host{}, "", false) {
			t.Error("fresh")
		}
	})
}

// A view is made of all files of the driver and of nothing else.
func TestIdentityIsOfEveryFileOfTheDriverAndNothingElse(t *testing.T) {
	r := squashfs(t)
	files := r.settled()
	r.write("usr/local/nvidia/lib64/libunrelated.so", nil, 0o644)
	r.write("etc/ld.so.cache", []byte("x"), 0o644)
	before := r.discover()
	if files.Fresh(r.host, version, false) || before.Identity != files.Identity {
		t.Fatalf("a file beside the driver: identity %s, then %s", files.Identity, before.Identity)
	}
	for _, name := range []string{before.Libraries[0].Path, before.Libraries[9].Path, before.Binaries[0].Path, before.Data[0].Path} {
		data, err := os.ReadFile(name)
		r.check(err)
		r.check(os.WriteFile(name+".new", data, 0o755))
		r.check(os.Rename(name+".new", name))
		after := r.discover()
		if after.Identity == before.Identity {
			t.Errorf("%s was replaced, and the identity is the same", name)
		}
		before = after
	}
}
