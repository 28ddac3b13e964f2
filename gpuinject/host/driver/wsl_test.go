package driver

import (
	"encoding/json"
	"os"
	"slices"
	"testing"
)

// wslPackage is a package of the driver store, by the name that Windows gives it.
const wslPackage = "usr/lib/wsl/drivers/nv_dispi.inf_amd64_9ab613610b40aa98"

// wslRoot is a WSL2 distribution: the loaders of libraries are real files under each
// of their names, and the store has packages of every vendor.
func wslRoot(t testing.TB) *fakeRoot {
	r := newRoot(t)
	file := func(dir, soname string, names ...string) {
		for _, n := range names {
			r.write(dir+"/"+n, elf64(arch.machine64, soname), 0o555)
		}
	}
	lib := "usr/lib/wsl/lib"
	file(lib, "libcuda.so.1", "libcuda.so", "libcuda.so.1", "libcuda.so.1.1")
	file(lib, "libdxcore.so", "libdxcore.so")
	file(lib, "libnvidia-ml.so.1", "libnvidia-ml.so.1")
	file(lib, "libnvidia-encode.so.1", "libnvidia-encode.so", "libnvidia-encode.so.1")
	file(lib, "libd3d12.so", "libd3d12.so")
	r.write(lib+"/nvidia-smi", nil, 0o555)
	file(wslPackage, "libcuda.so.1", "libcuda.so.1.1", "libcuda_loader.so")
	file(wslPackage, "libnvidia-ptxjitcompiler.so.1", "libnvidia-ptxjitcompiler.so.1")
	file(wslPackage, "libnvidia-ml.so.1", "libnvidia-ml.so.1")
	r.files(wslPackage+"/nvcubins.bin", wslPackage+"/nvapi64.dll", "usr/lib/wsl/drivers/iigd_dch.inf_amd64_1/igd.dll", "usr/lib/wsl/drivers/nvraid.inf_amd64_2/nvraid.sys")
	return r
}

func (r *fakeRoot) discoverWSL() *Files {
	r.t.Helper()
	files, err := DiscoverWSL(r.host)
	r.check(err)
	return files
}

func TestDiscoverWSL(t *testing.T) {
	r := wslRoot(t)
	files := r.discoverWSL()
	if err := files.Check([]string{"compute", "utility", "video", "graphics"}); err != nil {
		t.Fatal(err)
	}
	t.Run("one of three files with one SONAME is taken, the others are links", func(t *testing.T) {
		l := r.library(files, "libcuda.so.1.1")
		if l.Path != r.dir+"/usr/lib/wsl/lib/libcuda.so.1.1" || !slices.Equal(l.Links, []string{"libcuda.so.1", "libcuda.so"}) || !slices.Equal(l.Capabilities, []string{"compute"}) {
			t.Errorf("%+v", l)
		}
	})
	t.Run("libraries that only the store has come from its one package", func(t *testing.T) {
		want := []string{"libcuda.so.1.1", "libd3d12.so", "libdxcore.so", "libnvidia-encode.so.1", "libnvidia-ml.so.1", "libnvidia-ptxjitcompiler.so.1"}
		got := libraryNames(files)
		slices.Sort(got)
		if !slices.Equal(got, want) {
			t.Errorf("%v, want %v", got, want)
		}
	})
	t.Run("the loaders' directory and NVIDIA's package are given at their own paths, others' are not", func(t *testing.T) {
		var data []string
		for _, d := range files.Data {
			data = append(data, d.Dest)
			if d.Path != r.dir+d.Dest {
				t.Errorf("%+v", d)
			}
		}
		if want := []string{"/usr/lib/wsl/lib", "/" + wslPackage}; !slices.Equal(data, want) {
			t.Errorf("%v, want %v", data, want)
		}
	})
	t.Run("every capability has dxcore and the store, utility has nvidia-smi", func(t *testing.T) {
		for _, c := range []string{"compute", "utility", "video", "graphics", "display", "ngx"} {
			mine := files.For([]string{c})
			if len(mine.Data) != 2 || !slices.Contains(libraryNames(&mine), "libdxcore.so") || (len(mine.Binaries) == 1) != (c == "utility") {
				t.Errorf("%s: %v %+v %+v", c, libraryNames(&mine), mine.Data, mine.Binaries)
			}
		}
	})
	t.Run("of several packages none gives the linker its libraries, and all are there for dxcore", func(t *testing.T) {
		r := wslRoot(t)
		r.write("usr/lib/wsl/drivers/nvlti.inf_amd64_3/libcuda.so.1.1", elf64(arch.machine64, "libcuda.so.1"), 0o555)
		files := r.discoverWSL()
		if slices.Contains(libraryNames(files), "libnvidia-ptxjitcompiler.so.1") || len(files.Data) != 3 {
			t.Errorf("%v %+v", libraryNames(files), files.Data)
		}
	})
	t.Run("it is fresh until Windows installs another driver", func(t *testing.T) {
		r.settled()
		data, err := json.Marshal(r.discoverWSL())
		r.check(err)
		var files Files
		r.check(json.Unmarshal(data, &files))
		if !files.Fresh(r.host, []string{"compute"}) {
			t.Fatal("not fresh")
		}
		r.check(os.Rename(r.dir+"/"+wslPackage, r.dir+"/"+wslPackage+"b"))
		if files.Fresh(r.host, []string{"compute"}) {
			t.Error("fresh although the package has another name")
		}
	})
	t.Run("without NVIDIA's driver for Windows the message says what to install", func(t *testing.T) {
		r := newRoot(t)
		r.write("usr/lib/wsl/lib/libdxcore.so", elf64(arch.machine64, "libdxcore.so"), 0o555)
		files := r.discoverWSL()
		says(t, files.Check([]string{"compute"}), "WSL2", "libcuda.so.1", "driver for Windows")
		if want := []string{"compute: libcuda.so.1", "utility: libnvidia-ml.so.1"}; !slices.Equal(files.Missing, want) {
			t.Errorf("missing %v, want %v", files.Missing, want)
		}
	})
	t.Run("what others than root could have written is refused", func(t *testing.T) {
		r := wslRoot(t)
		r.check(os.Chmod(r.dir+"/"+wslPackage, 0o777))
		for _, n := range []string{"libcuda.so", "libcuda.so.1", "libcuda.so.1.1"} {
			r.check(os.Chown(r.dir+"/usr/lib/wsl/lib/"+n, 1000, 0))
		}
		files := r.discoverWSL()
		if len(files.Data) != 1 {
			t.Errorf("%+v", files.Data)
		}
		says(t, files.Check([]string{"compute"}), "libcuda.so.1", "refused", "uid 1000")
	})
}
