package host_test

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/devnode"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host/device"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host/driver"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testtree"
)

// wslPackage is a package of the driver store, by the name that Windows gives it.
const wslPackage = "usr/lib/wsl/drivers/nv_dispi.inf_amd64_9ab613610b40aa98"

// wslHost is a WSL2 distribution: no NVIDIA kernel module, one misc device, the loaders of
// libraries as real files under each of their names, and a store with packages of every vendor.
func wslHost(t testing.TB) *fixture {
	f := newFixture(t)
	f.Node("dxg", 10, 125, 0o660)
	lib := "usr/lib/wsl/lib/"
	for name, soname := range map[string]string{
		lib + "libcuda.so": "libcuda.so.1", lib + "libcuda.so.1": "libcuda.so.1", lib + "libcuda.so.1.1": "libcuda.so.1",
		lib + "libdxcore.so": "libdxcore.so", lib + "libnvidia-ml.so.1": "libnvidia-ml.so.1", lib + "libd3d12.so": "libd3d12.so",
		lib + "libnvidia-encode.so": "libnvidia-encode.so.1", lib + "libnvidia-encode.so.1": "libnvidia-encode.so.1",
		wslPackage + "/libcuda.so.1.1": "libcuda.so.1", wslPackage + "/libcuda_loader.so": "libcuda.so.1",
		wslPackage + "/libnvidia-ptxjitcompiler.so.1": "libnvidia-ptxjitcompiler.so.1", wslPackage + "/libnvidia-ml.so.1": "libnvidia-ml.so.1",
	} {
		f.Write(name, elf64(soname))
	}
	f.Check(os.Chmod(f.Write(lib+"nvidia-smi", ""), 0o555))
	for _, name := range []string{wslPackage + "/nvapi64.dll", "usr/lib/wsl/drivers/iigd_dch.inf_amd64_1/igd.dll", "usr/lib/wsl/drivers/nvraid.inf_amd64_2/nvraid.sys"} {
		f.Write(name, "")
	}
	return f
}

func TestWSLDevices(t *testing.T) {
	h := wslHost(t).discover()
	if set, err := h.Select([]string{"0", "all"}, device.Facts{}); err != nil || len(set.GPUs) != 1 {
		t.Errorf("%v, %v", set, err)
	}
	for _, id := range []string{"1", "GPU-fef8089b", "0000:01:00.0", "tegra", "0:0"} {
		_, err := h.Select([]string{id}, device.Facts{})
		testtree.Says(t, err, `"all"`, "every GPU that Windows shares with WSL2")
	}
	for _, set := range []device.Set{{GPUs: h.GPUs}, {}} {
		nodes, err := h.Nodes(set, []string{"compute", "graphics"}, driver.Files{})
		if err != nil || !slices.Equal(shown(nodes), []string{"/dev/dxg 10:125"}) {
			t.Errorf("%+v, %v", nodes, err)
		}
	}
	for number, want := range map[devnode.Number]int{{Major: 10, Minor: 125}: 1, {Major: 10, Minor: 57}: 0, {Major: 195}: 0} {
		if set, err := h.Given([]devnode.Number{number}); err != nil || len(set.GPUs) != want {
			t.Errorf("node %v gives %v, %v", number, set, err)
		}
	}
}

func TestTheWSLNodeIsVerified(t *testing.T) {
	for _, tt := range []struct {
		name, word string
		change     func(f *fixture)
	}{
		{"another misc device under its name", "10:57", func(f *fixture) { f.Node("dxg", 10, 57, 0o660) }},
		{"dxgkrnl is not loaded", "10:125", func(f *fixture) { f.Write("proc/misc", "126 udmabuf\n") }},
		{"a link", "a symbolic link", func(f *fixture) { f.Check(os.Remove(f.Dir + "/dev/dxg")); f.Link("dev/dxg", "null") }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := wslHost(t)
			tt.change(f)
			_, err := f.discover().Nodes(device.Set{}, nil, driver.Files{})
			testtree.Says(t, err, tt.word, "dxg")
		})
	}
}

func TestWSLFiles(t *testing.T) {
	f := wslHost(t)
	files := f.files()
	f.Check(files.Check([]string{"compute", "utility", "video", "graphics"}))
	t.Run("one of three files with one SONAME is taken, the others are links", func(t *testing.T) {
		l := f.library(files, "libcuda.so.1.1")
		if l.Path != f.Dir+"/usr/lib/wsl/lib/libcuda.so.1.1" || !slices.Equal(l.Links, []string{"libcuda.so.1", "libcuda.so"}) || !slices.Equal(l.Capabilities, []string{"compute"}) {
			t.Errorf("%+v", l)
		}
	})
	t.Run("libraries that only the store has come from its one package", func(t *testing.T) {
		want := []string{"libcuda.so.1.1", "libd3d12.so", "libdxcore.so", "libnvidia-encode.so.1", "libnvidia-ml.so.1", "libnvidia-ptxjitcompiler.so.1"}
		if got := libraries(files); !slices.Equal(got, want) {
			t.Errorf("%v, want %v", got, want)
		}
	})
	t.Run("every capability has dxcore, the loaders' directory and NVIDIA's package; utility has nvidia-smi", func(t *testing.T) {
		for _, c := range []string{"compute", "utility", "video", "graphics", "display", "ngx"} {
			mine := files.For([]string{c})
			var data []string
			for _, d := range mine.Data {
				data = append(data, strings.TrimPrefix(d.Path, f.Dir)+" "+d.Dest)
			}
			lib, store := "/usr/lib/wsl/lib", "/"+wslPackage
			if !slices.Equal(data, []string{lib + " " + lib, store + " " + store}) || !slices.Contains(libraries(mine), "libdxcore.so") || (len(mine.Binaries) == 1) != (c == "utility") {
				t.Errorf("%s: %v %+v %+v", c, libraries(mine), mine.Data, mine.Binaries)
			}
		}
	})
	t.Run("of several packages none gives the linker its libraries, and all are there for dxcore", func(t *testing.T) {
		f := wslHost(t)
		f.Write("usr/lib/wsl/drivers/nvlti.inf_amd64_3/libcuda.so.1.1", elf64("libcuda.so.1"))
		if files := f.files(); slices.Contains(libraries(files), "libnvidia-ptxjitcompiler.so.1") || len(files.Data) != 3 {
			t.Errorf("%v %+v", libraries(files), files.Data)
		}
	})
	t.Run("without NVIDIA's driver for Windows the message says what to install", func(t *testing.T) {
		f := newFixture(t)
		f.Node("dxg", 10, 125, 0o660)
		f.Write("usr/lib/wsl/lib/libdxcore.so", elf64("libdxcore.so"))
		files := f.files()
		testtree.Says(t, files.Check([]string{"compute"}), "WSL2", "libcuda.so.1", "driver for Windows")
		if want := []string{"compute: libcuda.so.1", "utility: libnvidia-ml.so.1"}; !slices.Equal(files.Missing, want) {
			t.Errorf("missing %v, want %v", files.Missing, want)
		}
	})
	t.Run("what others than root could have written is refused", func(t *testing.T) {
		f := wslHost(t)
		f.Check(os.Chmod(f.Dir+"/"+wslPackage, 0o777))
		for _, n := range []string{"libcuda.so", "libcuda.so.1", "libcuda.so.1.1"} {
			f.Check(os.Chown(f.Dir+"/usr/lib/wsl/lib/"+n, 1000, 0))
		}
		files := f.files()
		if len(files.Data) != 1 {
			t.Errorf("%+v", files.Data)
		}
		testtree.Says(t, files.Check([]string{"compute"}), "libcuda.so.1", "refused", "uid 1000")
	})
}
