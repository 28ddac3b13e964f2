package host_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/devnode"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host/device"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host/driver"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testtree"
)

const listDir = "etc/nvidia-container-runtime/host-files-for-container.d/"

// tegraHost is a Jetson as its packages leave it: nodes, libraries in a directory of their own,
// links to them, firmware, and lists of all that.
func tegraHost(t testing.TB) *fixture {
	f := newFixture(t)
	nv := "usr/lib/" + triple + "/nvidia"
	f.Write(nv+"/libcuda.so.1.1", elf64("libcuda.so.1"))
	f.Write(nv+"/libnvrm_gpu.so", elf64("libnvrm_gpu.so"))
	f.Link("usr/lib/"+triple+"/libcuda.so", "nvidia/libcuda.so.1.1")
	f.Link(nv+"/libcuda.so.1", "libcuda.so.1.1")
	f.Link("usr/lib/"+triple+"/libnvgone.so", "nvidia/libnvgone.so.1")
	f.Link("etc/vulkan/icd.d/nvidia_icd.json", "/"+nv+"/nvidia_icd.json")
	for _, name := range []string{"lib/firmware/tegra234/vic.bin", "usr/share/nvidia/plugin-a.json", "usr/share/nvidia/plugin-b.json", "usr/share/nvidia/readme", "usr/sbin/nvidia-smi", nv + "/nvidia_icd.json"} {
		f.Write(name, "x")
	}
	f.Write("etc/nv_tegra_release", "# R36 (release), REVISION: 4.0\n")
	f.Write(listDir+"devices.csv", "dev, /dev/nvmap\ndev, /dev/nvhost-*\n\ndev,/dev/nvmap\ndev, /dev/nvgpu/igpu0/as\ndev, /dev/nvhost-gpu\ndev, /dev/nvidia0\ndev, /dev/nvidia-modeset\ndev, /dev/dri/*\n")
	f.Write(listDir+"drivers.csv", strings.Join([]string{
		"lib, /" + nv + "/libcuda.so.1.1", "lib, /" + nv + "/libnvrm_gpu.so", "lib, /" + nv + "/libnotthere.so",
		"sym, /usr/lib/" + triple + "/libcuda.so", "sym, /" + nv + "/libcuda.so.1", "sym, /usr/lib/" + triple + "/libnvgone.so",
		"sym, /etc/vulkan/icd.d/nvidia_icd.json", "lib, /usr/sbin/nvidia-smi", "dir, /lib/firmware/tegra234",
		"lib, /usr/share/nvidia/*.json", "# a comment", "lib, /" + nv + "/libcuda.so.1.1",
	}, "\r\n"))
	f.Write("usr/local/cuda-10.2/lib64/libcudart.so.10.2", elf64("libcudart.so.10.2"))
	f.Write(listDir+"cuda.csv", "lib, /usr/local/cuda-10.2/lib64/libcudart.so.10.2\n")
	f.Node("nvmap", 10, 80, 0o660)
	f.Node("nvhost-ctrl", 505, 1, 0o660)
	f.Node("nvhost-gpu", 505, 2, 0o660)
	f.Node("nvgpu/igpu0/as", 506, 0, 0o660)
	f.Node("nvidia-modeset", 195, 254, 0o666)
	f.Node("dri/card0", 226, 0, 0o660)
	f.Node("dri/renderD128", 226, 128, 0o660)
	return f
}

func TestTegraDevices(t *testing.T) {
	f := tegraHost(t)
	h, files := f.discover(), f.files()
	for _, id := range []string{"all", "0", "tegra"} {
		if set, err := h.Select([]string{id}, device.Facts{}); err != nil || len(set.GPUs) != 1 {
			t.Errorf("%s: %v, %v", id, set, err)
		}
	}
	nodes, err := h.Nodes(device.Set{GPUs: h.GPUs}, []string{"compute"}, files)
	want := []string{"/dev/nvmap 10:80", "/dev/nvhost-ctrl 505:1", "/dev/nvhost-gpu 505:2", "/dev/nvgpu/igpu0/as 506:0", "/dev/dri/renderD128 226:128"}
	if err != nil || !slices.Equal(shown(nodes), want) {
		t.Errorf("%v, %v, want %v", shown(nodes), err, want)
	}
	nodes, err = h.Nodes(device.Set{GPUs: h.GPUs}, []string{"display"}, files)
	want = slices.Insert(want, 4, "/dev/nvidia-modeset 195:254", "/dev/dri/card0 226:0")
	if err != nil || !slices.Equal(shown(nodes), want) {
		t.Errorf("display: %v, %v, want %v", shown(nodes), err, want)
	}
	if nodes, err := h.Nodes(device.Set{}, nil, files); err != nil || len(nodes) != 0 {
		t.Errorf("without a GPU: %v, %v", nodes, err)
	}
	for number, want := range map[devnode.Number]int{{Major: 505, Minor: 2}: 1, {Major: 10, Minor: 80}: 1, {Major: 10, Minor: 57}: 0} {
		if set, err := h.Given([]devnode.Number{number}); err != nil || len(set.GPUs) != want {
			t.Errorf("node %v gives %v, %v", number, set, err)
		}
	}
	f.Write("dev/nvhost-file", "")
	f.Link("dev/nvhost-link", "nvmap")
	f.Write("dev/nvhost-dir/x", "")
	for _, tt := range []struct{ path, word string }{
		{"/etc/passwd", "not below /dev"}, {"/dev/../etc/passwd", "not below /dev"}, {"/dev/nvhost-file", "a regular file"},
		{"/dev/nvhost-link", "a symbolic link"}, {"/dev/absent", "none of the device nodes"}, {"/dev/[", "syntax error"},
	} {
		_, err := h.Nodes(device.Set{GPUs: h.GPUs}, nil, driver.Files{Nodes: []string{tt.path}})
		testtree.Says(t, err, tt.word)
	}
	if nodes, err := h.Nodes(device.Set{GPUs: h.GPUs}, nil, driver.Files{Nodes: []string{"/dev/nvhost-*"}}); err != nil || len(nodes) != 2 {
		t.Errorf("a pattern that matches a file, a link and a directory too: %v, %v", nodes, err)
	}
}

func TestTegraFiles(t *testing.T) {
	f := tegraHost(t)
	files := f.files()
	nv := "/usr/lib/" + triple + "/nvidia"
	f.Check(files.Check([]string{"compute", "utility"}))
	t.Run("a library is at its own path, and links to it are further names", func(t *testing.T) {
		l := f.library(files, "libcuda.so.1.1")
		if len(files.Libraries) != 2 || l.Dir != nv || l.Path != f.Dir+nv+"/libcuda.so.1.1" || l.SOName != "libcuda.so.1" || !slices.Equal(l.Links, []string{"libcuda.so.1", "libcuda.so"}) {
			t.Errorf("%+v", files.Libraries)
		}
	})
	t.Run("files, directories, patterns and links are data", func(t *testing.T) {
		var got []string
		for _, d := range files.Data {
			got = append(got, d.Dest+" "+strings.TrimPrefix(d.Path, f.Dir))
		}
		slices.Sort(got)
		want := []string{"/etc/nv_tegra_release /etc/nv_tegra_release", "/etc/vulkan/icd.d/nvidia_icd.json " + nv + "/nvidia_icd.json"}
		for _, name := range []string{"/lib/firmware/tegra234", "/usr/sbin/nvidia-smi", "/usr/share/nvidia/plugin-a.json", "/usr/share/nvidia/plugin-b.json"} {
			want = append(want, name+" "+name)
		}
		if !slices.Equal(got, want) {
			t.Errorf("%v, want %v", got, want)
		}
	})
	t.Run("they are searched again when a list or a listed file changes", func(t *testing.T) {
		for i, change := range []func(){
			func() { f.Write(listDir+"l4t.csv", "lib, /etc/hosts\n") },
			func() { f.Write(nv+"/libnotthere.so", elf64("libnotthere.so")) },
			func() { f.Check(os.Chtimes(f.Dir+nv+"/libnvrm_gpu.so", time.Unix(1, 0), time.Unix(1, 0))) },
		} {
			files := f.files()
			before := f.changed(files)
			if change(); before || !f.changed(files) {
				t.Errorf("change %d: changed before it is %v", i, before)
			}
		}
	})
	t.Run("a list cannot put anything over /proc, /sys, /dev or /, nor lead out of the root", func(t *testing.T) {
		f := tegraHost(t)
		f.Write("proc/x", "")
		f.Write("sys/x", "")
		f.Link("usr/share/out", "/../../../../../../../../etc/shadow")
		f.Write(listDir+"l4t.csv", "lib, /proc/x\nlib, /usr/../sys/x\ndir, /\ndir, /dev\nlib, /usr/share/out\nlib, /usr/*/nvidia/readme\nbin, /x\nlib, relative\nlib\n")
		files := f.files()
		if len(files.Data) != 6 || len(files.Refused) != 3 {
			t.Errorf("%+v, refused %v", files.Data, files.Refused)
		}
	})
	t.Run("a list that others can write is not read", func(t *testing.T) {
		f := tegraHost(t)
		f.Check(os.Chmod(f.Dir+"/"+listDir+"drivers.csv", 0o666))
		files := f.files()
		if len(files.Libraries) != 0 || len(files.Refused) != 1 || !strings.Contains(files.Refused[0].Reason, "writable by users other than root") {
			t.Errorf("%v, refused %v", libraries(files), files.Refused)
		}
		testtree.Says(t, files.Check([]string{"compute"}), "Tegra", "libcuda.so.1", "nvidia-l4t")
	})
}

// FuzzTegraLists holds that a list gives only nodes that are there, and no file in the kernel's
// trees.
func FuzzTegraLists(f *testing.F) {
	f.Add("dev, /dev/nvmap\ndev, /dev/nvhost-*\nlib, /usr/share/nvidia/*.json\n")
	f.Add("dev,/dev/../etc/nv_tegra_release\ndev, /dev/[\nsym, /proc/self/root\ndir, /\ndir, /dev\n,\n#\nlib\n")
	f.Add("lib, /usr/share/nvidia/../../../etc/*\x00\nlib, /proc/*\ndir,//sys//x\r\n")
	jetson := tegraHost(f)
	list := filepath.Join(jetson.Dir, listDir, "drivers.csv")
	f.Fuzz(func(t *testing.T, text string) {
		if err := os.WriteFile(list, []byte(text+"\nlib, /usr/lib/"+triple+"/nvidia/libcuda.so.1.1\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		h, err := host.Discover(jetson.cfg)
		if err != nil {
			t.Fatal(err)
		}
		files, err := h.DriverFiles()
		if err != nil {
			return
		}
		for _, d := range files.Data {
			for _, tree := range []string{"/proc", "/sys", "/dev"} {
				if d.Dest == "/" || d.Dest == tree || strings.HasPrefix(d.Dest, tree+"/") {
					t.Errorf("%+v", d)
				}
			}
		}
		nodes, err := h.Nodes(device.Set{GPUs: h.GPUs}, nil, files)
		if err != nil {
			return
		}
		for _, n := range nodes {
			var st unix.Stat_t
			err := unix.Lstat(filepath.Join(jetson.Dir, n.Path), &st)
			if err != nil || st.Mode&unix.S_IFMT != unix.S_IFCHR || st.Rdev != unix.Mkdev(n.Major, n.Minor) || !strings.HasPrefix(n.Path, "/dev/") || strings.Contains(n.Path, "..") {
				t.Errorf("node %+v, %v", n, err)
			}
		}
	})
}
