package device

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
)

// miscDevices has what a kernel of WSL2 lists, with the number that dxgkrnl got there.
const miscDevices = "126 udmabuf\n125 dxg\n236 device-mapper\n"

// wslHost is WSL2: no NVIDIA kernel module, one misc device.
func wslHost(t testing.TB) *fakeHost {
	dir := t.TempDir()
	h := &fakeHost{t, Roots{Proc: dir + "/proc", Dev: dir, Sys: dir + "/sys", Driver: dir}}
	h.write(h.roots.Proc+"/devices", "Character devices:\n  1 mem\n 10 misc\n\nBlock devices:\n")
	h.write(h.roots.Proc+"/misc", miscDevices)
	h.write(dir+"/usr/lib/wsl/lib/libdxcore.so", "")
	h.node("dxg", 10, 125, 0o666)
	return h
}

func TestWSL(t *testing.T) {
	h := wslHost(t)
	inv := h.discover()
	if inv.Platform != WSL || inv.DriverVersion != "" || len(inv.GPUs) != 1 || inv.GPUs[0].Index != 0 {
		t.Fatalf("%+v", inv)
	}
	for _, ids := range [][]string{{"all"}, {"0"}, {"0", "all"}} {
		if set, err := inv.Select(ids, nil); err != nil || len(set.GPUs) != 1 {
			t.Errorf("%v: %v, %v", ids, set, err)
		}
	}
	for _, id := range []string{"1", "GPU-fef8089b", "0000:01:00.0", "tegra"} {
		_, err := inv.Select([]string{id}, nil)
		if err == nil || !strings.Contains(err.Error(), `"all"`) || !strings.Contains(err.Error(), "every GPU that Windows shares with WSL2") || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v", id, err)
		}
	}
	for _, set := range []Set{{GPUs: inv.GPUs}, {}} {
		nodes, err := inv.Nodes(set, []string{"compute", "utility", "graphics"})
		if err != nil || len(nodes) != 1 || nodes[0].Path != "/dev/dxg" || nodes[0].Major != 10 || nodes[0].Minor != 125 || nodes[0].Mode != 0o666 {
			t.Errorf("%+v, %v", nodes, err)
		}
	}
	for number, want := range map[Number]int{{10, 125}: 1, {10, 57}: 0, {195, 0}: 0} {
		if set, err := inv.Given([]Number{number}); err != nil || len(set.GPUs) != want {
			t.Errorf("a container with node %v was given %v, %v", number, set, err)
		}
	}
	if list, err := inv.Instances(); err != nil || len(list) != 0 {
		t.Errorf("MIG: %v, %v", list, err)
	}
}

func TestWSLNodeIsVerified(t *testing.T) {
	for _, tt := range []struct {
		name, word string
		change     func(h *fakeHost)
	}{
		{"another misc device under its name", "10:57", func(h *fakeHost) { h.remove("dxg"); h.node("dxg", 10, 57, 0o666) }},
		{"another driver's device under its name", "195:125", func(h *fakeHost) { h.remove("dxg"); h.node("dxg", 195, 125, 0o666) }},
		{"dxgkrnl is not loaded", "10:125", func(h *fakeHost) { h.write(h.roots.Proc+"/misc", "126 udmabuf\n") }},
		{"a file", "a regular file", func(h *fakeHost) { h.remove("dxg"); h.write(h.roots.Dev+"/dev/dxg", "") }},
		{"a link", "a symbolic link", func(h *fakeHost) { h.remove("dxg"); os.Symlink("null", h.roots.Dev+"/dev/dxg") }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h := wslHost(t)
			tt.change(h)
			_, err := h.discover().Nodes(Set{}, nil)
			if err == nil || !strings.Contains(err.Error(), tt.word) || !strings.Contains(err.Error(), "dxg") {
				t.Errorf("error %v, want one with %q", err, tt.word)
			}
		})
	}
}

func (h *fakeHost) remove(name string) {
	h.t.Helper()
	if err := os.Remove(h.roots.Dev + "/dev/" + name); err != nil {
		h.t.Fatal(err)
	}
}

func TestPlatformIsRecognised(t *testing.T) {
	for _, tt := range []struct {
		name     string
		host     func(t testing.TB) *fakeHost
		platform Platform
		gpus     int
		err      error
	}{
		{"a GPU host with a file of WSL2's is a GPU host", func(t testing.TB) *fakeHost {
			h := fourGPUs(t)
			h.roots.Driver = h.roots.Dev
			h.write(h.roots.Dev+"/usr/lib/wsl/lib/libdxcore.so", "")
			h.node("dxg", 10, 125, 0o666)
			return h
		}, "", 3, nil},
		{"a node without dxcore is not WSL2", func(t testing.TB) *fakeHost {
			h := wslHost(t)
			os.Remove(h.roots.Dev + "/usr/lib/wsl/lib/libdxcore.so")
			return h
		}, "", 0, ErrNoDriver},
		{"dxcore without a node is not WSL2", func(t testing.TB) *fakeHost {
			h := wslHost(t)
			h.remove("dxg")
			return h
		}, "", 0, ErrNoDriver},
		{"a Tegra by its release file, without a kernel module of PCI GPUs", func(t testing.TB) *fakeHost {
			h := wslHost(t)
			h.write(h.roots.Dev+"/etc/nv_tegra_release", "# R36\n")
			return h
		}, Tegra, 1, nil},
		{"a Tegra by its family, whose display module reports no GPU", func(t testing.TB) *fakeHost {
			h := newHost(t)
			h.write(h.roots.Sys+"/devices/soc0/family", "Tegra\n")
			return h
		}, Tegra, 1, nil},
		{"a Tegra whose GPU procfs reports by name", func(t testing.TB) *fakeHost {
			h := newHost(t)
			h.write(h.roots.Sys+"/devices/soc0/family", "tegra264\n")
			h.write(h.roots.Proc+"/driver/nvidia/gpus/0000:01:00.0/information", fmt.Sprintf("Model: NVIDIA Thor\nGPU UUID: %s\nDevice Minor: 0\n", uuid("00000001")))
			return h
		}, Tegra, 1, nil},
		{"a Tegra with a GPU in a slot is a GPU host", func(t testing.TB) *fakeHost {
			h := fourGPUs(t)
			h.write(h.roots.Sys+"/devices/soc0/family", "Tegra\n")
			return h
		}, "", 3, nil},
		{"another system-on-chip is none", func(t testing.TB) *fakeHost {
			h := newHost(t)
			h.write(h.roots.Sys+"/devices/soc0/family", "Snapdragon\n")
			return h
		}, "", 0, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			inv, err := Discover(tt.host(t).roots)
			if !errors.Is(err, tt.err) {
				t.Fatal(err)
			}
			if err == nil && (inv.Platform != tt.platform || len(inv.GPUs) != tt.gpus) {
				t.Errorf("platform %q with %d GPUs, want %q with %d", inv.Platform, len(inv.GPUs), tt.platform, tt.gpus)
			}
		})
	}
}

func TestTegraNodes(t *testing.T) {
	h := wslHost(t)
	h.write(h.roots.Dev+"/etc/nv_tegra_release", "# R36\n")
	h.node("nvmap", 10, 80, 0o660)
	h.node("nvhost-ctrl", 505, 1, 0o660)
	h.node("nvhost-gpu", 505, 2, 0o660)
	h.node("nvgpu/igpu0/as", 506, 0, 0o660)
	inv := h.discover()
	for _, id := range []string{"all", "0", "tegra"} {
		if set, err := inv.Select([]string{id}, nil); err != nil || len(set.GPUs) != 1 {
			t.Errorf("%s: %v, %v", id, set, err)
		}
	}
	list := []string{"/dev/nvmap", "/dev/nvhost-*", "/dev/nvgpu/igpu0/as", "/dev/nvhost-gpu", "/dev/nvidia0"}
	nodes, err := inv.NodesAt(list)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, n := range nodes {
		got = append(got, fmt.Sprintf("%s %d:%d %o", n.Path, n.Major, n.Minor, n.Mode))
	}
	want := []string{"/dev/nvmap 10:80 660", "/dev/nvhost-ctrl 505:1 660", "/dev/nvhost-gpu 505:2 660", "/dev/nvgpu/igpu0/as 506:0 660"}
	if !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	h.write(h.roots.Dev+"/dev/nvhost-file", "")
	os.Symlink("nvmap", h.roots.Dev+"/dev/nvhost-link")
	for _, tt := range []struct{ path, word string }{
		{"/etc/passwd", "not below /dev"}, {"/dev/../etc/passwd", "not below /dev"}, {"/dev/nvhost-file", "a regular file"},
		{"/dev/nvhost-link", "a symbolic link"}, {"/dev/absent", "none of the device nodes"}, {"/dev/[", "syntax error"},
	} {
		if _, err := inv.NodesAt([]string{tt.path}); err == nil || !strings.Contains(err.Error(), tt.word) {
			t.Errorf("%s: %v, want %q", tt.path, err, tt.word)
		}
	}
	h.write(h.roots.Dev+"/dev/nvhost-dir/x", "")
	if nodes, err := inv.NodesAt([]string{"/dev/nvhost-*"}); err != nil || len(nodes) != 2 {
		t.Errorf("a pattern that matches a file, a link and a directory too: %v, %v", nodes, err)
	}
	for i := range maxTegraNodes + 1 {
		h.node(fmt.Sprintf("many-%d", i), 505, uint32(i), 0o600)
	}
	if _, err := inv.NodesAt([]string{"/dev/many-*"}); err == nil || !strings.Contains(err.Error(), "stands for 257 nodes") {
		t.Error(err)
	}
}
