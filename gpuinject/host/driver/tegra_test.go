package driver

import (
	"os"
	"slices"
	"strings"
	"testing"
	"time"
)

// tegraRoot is a Jetson as its packages leave it: libraries in a directory of their
// own, links to them, firmware, and lists of all that.
func tegraRoot(t testing.TB) *fakeRoot {
	r := newRoot(t)
	nv := "usr/lib/" + arch.triple + "/nvidia"
	r.write(nv+"/libcuda.so.1.1", elf64(arch.machine64, "libcuda.so.1"), 0o644)
	r.write(nv+"/libnvrm_gpu.so", elf64(arch.machine64, "libnvrm_gpu.so"), 0o644)
	r.link("usr/lib/"+arch.triple+"/libcuda.so", "nvidia/libcuda.so.1.1")
	r.link(nv+"/libcuda.so.1", "libcuda.so.1.1")
	r.link("usr/lib/"+arch.triple+"/libnvgone.so", "nvidia/libnvgone.so.1")
	r.write("usr/sbin/nvidia-smi", []byte("#!"), 0o755)
	r.files("lib/firmware/tegra234/nvdec.bin", "lib/firmware/tegra234/vic.bin", "usr/share/nvidia/plugin-a.json", "usr/share/nvidia/plugin-b.json", "usr/share/nvidia/readme")
	r.link("etc/vulkan/icd.d/nvidia_icd.json", "/"+nv+"/nvidia_icd.json")
	r.files(nv + "/nvidia_icd.json")
	r.write("etc/nv_tegra_release", []byte("# R36 (release), REVISION: 4.0\n"), 0o644)
	r.write(csvDir+"/devices.csv", []byte("dev, /dev/nvmap\ndev, /dev/nvhost-*\n\ndev,/dev/nvmap\n"), 0o644)
	r.write(csvDir+"/drivers.csv", []byte(strings.Join([]string{
		"lib, /" + nv + "/libcuda.so.1.1", "lib, /" + nv + "/libnvrm_gpu.so", "lib, /" + nv + "/libnotthere.so",
		"sym, /usr/lib/" + arch.triple + "/libcuda.so", "sym, /" + nv + "/libcuda.so.1", "sym, /usr/lib/" + arch.triple + "/libnvgone.so",
		"sym, /etc/vulkan/icd.d/nvidia_icd.json", "lib, /usr/sbin/nvidia-smi", "dir, /lib/firmware/tegra234",
		"lib, /usr/share/nvidia/*.json", "# a comment", "lib, /" + nv + "/libcuda.so.1.1",
	}, "\r\n")), 0o644)
	r.write("usr/local/cuda-10.2/lib64/libcudart.so.10.2", elf64(arch.machine64, "libcudart.so.10.2"), 0o644)
	r.write(csvDir+"/cuda.csv", []byte("lib, /usr/local/cuda-10.2/lib64/libcudart.so.10.2\n"), 0o644)
	return r
}

func (r *fakeRoot) discoverTegra(all bool) *Files {
	r.t.Helper()
	files, err := DiscoverTegra(r.host, all)
	r.check(err)
	return files
}

func TestDiscoverTegra(t *testing.T) {
	r := tegraRoot(t)
	files := r.discoverTegra(false)
	nv := "/usr/lib/" + arch.triple + "/nvidia"
	if err := files.Check([]string{"compute", "utility"}); err != nil {
		t.Fatal(err)
	}
	t.Run("nodes are those of the lists, each once, patterns as they are", func(t *testing.T) {
		if want := []string{"/dev/nvmap", "/dev/nvhost-*"}; !slices.Equal(files.Nodes, want) {
			t.Errorf("%v, want %v", files.Nodes, want)
		}
	})
	t.Run("a library is at its own path, and links to it are further names", func(t *testing.T) {
		if n := len(files.Libraries); n != 2 {
			t.Errorf("%v", libraryNames(files))
		}
		l := r.library(files, "libcuda.so.1.1")
		if l.Dir != nv || l.Path != r.dir+nv+"/libcuda.so.1.1" || l.SOName != "libcuda.so.1" || !slices.Equal(l.Links, []string{"libcuda.so.1", "libcuda.so"}) {
			t.Errorf("%+v", l)
		}
	})
	t.Run("files, directories, patterns and links are data", func(t *testing.T) {
		got := map[string]string{}
		for _, d := range files.Data {
			got[d.Dest] = strings.TrimPrefix(d.Path, r.dir)
		}
		want := map[string]string{
			"/usr/sbin/nvidia-smi": "/usr/sbin/nvidia-smi", "/lib/firmware/tegra234": "/lib/firmware/tegra234",
			"/usr/share/nvidia/plugin-a.json": "/usr/share/nvidia/plugin-a.json", "/usr/share/nvidia/plugin-b.json": "/usr/share/nvidia/plugin-b.json",
			"/etc/vulkan/icd.d/nvidia_icd.json": nv + "/nvidia_icd.json", "/etc/nv_tegra_release": "/etc/nv_tegra_release",
		}
		if len(got) != len(want) {
			t.Errorf("%v, want %v", got, want)
		}
		for dest, path := range want {
			if got[dest] != path {
				t.Errorf("%s is %q, want %q", dest, got[dest], path)
			}
		}
	})
	t.Run("NVIDIA_REQUIRE_JETPACK asks for every list", func(t *testing.T) {
		if slices.Contains(libraryNames(files), "libcudart.so.10.2") || !slices.Contains(libraryNames(r.discoverTegra(true)), "libcudart.so.10.2") {
			t.Error("cuda.csv was read without being asked for, or not where it was")
		}
	})
	t.Run("it is fresh until a list or a listed file changes", func(t *testing.T) {
		for _, change := range []func(){
			func() { r.write(csvDir+"/l4t.csv", []byte("lib, /etc/hosts\n"), 0o644) },
			func() { r.lib(nv+"/libnotthere.so", "libnotthere.so") },
			func() { r.check(os.Chtimes(r.dir+nv+"/libnvrm_gpu.so", time.Unix(1, 0), time.Unix(1, 0))) },
		} {
			r.settled()
			files := r.discoverTegra(false)
			if !files.Fresh(r.host, []string{"compute"}) {
				t.Fatal("not fresh")
			}
			change()
			if files.Fresh(r.host, []string{"compute"}) {
				t.Error("fresh after a change")
			}
		}
	})
	t.Run("a list cannot put anything over /proc, /sys, /dev or /, nor lead out of the root", func(t *testing.T) {
		r := tegraRoot(t)
		r.files("proc/x", "sys/x")
		r.link("usr/share/out", "/../../../../../../../../etc/shadow")
		r.write(csvDir+"/l4t.csv", []byte("lib, /proc/x\nlib, /usr/../sys/x\ndir, /\ndir, /dev\nlib, /usr/share/out\nlib, /usr/*/nvidia/readme\nbin, /x\nlib, relative\nlib\n"), 0o644)
		files := r.discoverTegra(false)
		for _, d := range files.Data {
			if strings.HasPrefix(d.Dest, "/proc") || strings.HasPrefix(d.Dest, "/sys") || d.Dest == "/" || d.Dest == "/dev" || !strings.HasPrefix(d.Path, r.dir) || d.Dest == "/usr/share/out" {
				t.Errorf("%+v", d)
			}
		}
		if n := len(files.Refused); n != 4 {
			t.Errorf("%d refused: %v", n, files.Refused)
		}
	})
	t.Run("a list that others can write is not read", func(t *testing.T) {
		r := tegraRoot(t)
		r.check(os.Chmod(r.dir+csvDir+"/drivers.csv", 0o666))
		files := r.discoverTegra(false)
		if len(files.Libraries) != 0 || !strings.Contains(refusal(files, "drivers.csv"), "written by everybody") {
			t.Errorf("%v, refused %v", libraryNames(files), files.Refused)
		}
		says(t, files.Check([]string{"compute"}), "Tegra", "libcuda.so.1", "nvidia-l4t")
	})
}
