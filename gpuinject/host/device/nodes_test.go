package device

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simdriver/simtest"
)

// nodeHost has the nodes of a real host for fourGPUs, with DRM nodes for index 0.
func nodeHost(t testing.TB) *fakeHost {
	h := fourGPUs(t)
	h.Node("nvidiactl", 195, 255, 0o666)
	for minor := range uint32(4) {
		h.Node(fmt.Sprintf("nvidia%d", minor), 195, minor, 0o666)
	}
	h.Node("nvidia-uvm", 238, 0, 0o666)
	h.Node("nvidia-uvm-tools", 238, 1, 0o666)
	h.Node("nvidia-modeset", 195, 254, 0o666)
	for _, name := range []string{"card1", "renderD129", "card1-DP-1", "controlD65"} {
		h.Write("sys/bus/pci/devices/0000:65:00.0/drm/"+name+"/dev", "226:0\n")
	}
	h.Node("dri/card1", 226, 1, 0o660)
	h.Node("dri/renderD129", 226, 129, 0o660)
	h.Node("dri/card0", 226, 0, 0o660)
	return h
}

func TestNodes(t *testing.T) {
	h := migHost(t)
	inv := h.discover()
	config, err := inv.Management("config")
	h.Check(err)
	h.Check(os.Chown(h.Dir+"/dev/dri/card1", 0, 44))
	for _, tt := range []struct {
		name, ids string
		caps      []string
		manage    []Capability
		want      string // below /dev
	}{
		{"utility gets the control node and the GPU by its minor", "0", []string{"utility"}, nil, "nvidiactl 195:255, nvidia2 195:2"},
		{"compute adds both nodes of nvidia-uvm", "1", []string{"compute", "utility"}, nil,
			"nvidiactl 195:255, nvidia0 195:0, nvidia-uvm 238:0, nvidia-uvm-tools 238:1"},
		{"video needs nvidia-uvm, because its libraries load CUDA", "1", []string{"video"}, nil,
			"nvidiactl 195:255, nvidia0 195:0, nvidia-uvm 238:0, nvidia-uvm-tools 238:1"},
		{"graphics adds modeset and the DRM nodes of that GPU only", "0", []string{"graphics"}, nil,
			"nvidiactl 195:255, nvidia2 195:2, nvidia-modeset 195:254, dri/card1 226:1, dri/renderD129 226:129"},
		{"display is the same for a GPU without DRM nodes", "1", []string{"display"}, nil,
			"nvidiactl 195:255, nvidia0 195:0, nvidia-modeset 195:254"},
		{"no GPU is the control node", "", []string{"utility"}, nil, "nvidiactl 195:255"},
		{"no capability is the control node and the GPU", "0", nil, nil, "nvidiactl 195:255, nvidia2 195:2"},
		{"a MIG device is its GPU and two capabilities", "0:4", nil, nil,
			"nvidiactl 195:255, nvidia2 195:2, nvidia-caps/nvidia-cap354 241:354, nvidia-caps/nvidia-cap355 241:355"},
		{"two of one GPU instance share its capability", "0:0,0:1", nil, nil,
			"nvidiactl 195:255, nvidia2 195:2, nvidia-caps/nvidia-cap363 241:363, nvidia-caps/nvidia-cap364 241:364, nvidia-caps/nvidia-cap365 241:365"},
		{"a MIG device beside a whole GPU", "1,2:0", nil, nil,
			"nvidiactl 195:255, nvidia0 195:0, nvidia3 195:3, nvidia-caps/nvidia-cap417 241:417, nvidia-caps/nvidia-cap418 241:418"},
		{"the right to configure MIG", "1", nil, []Capability{config}, "nvidiactl 195:255, nvidia0 195:0, nvidia-caps/nvidia-cap1 241:1"},
		{"a MIG profile for graphics has the DRM nodes", "0:4", []string{"graphics"}, nil,
			"nvidiactl 195:255, nvidia2 195:2, nvidia-modeset 195:254, dri/card1 226:1, dri/renderD129 226:129, nvidia-caps/nvidia-cap354 241:354, nvidia-caps/nvidia-cap355 241:355"},
		{"another MIG profile has none", "0:1", []string{"graphics"}, nil,
			"nvidiactl 195:255, nvidia2 195:2, nvidia-modeset 195:254, nvidia-caps/nvidia-cap363 241:363, nvidia-caps/nvidia-cap364 241:364"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var ids []string
			if tt.ids != "" {
				ids = strings.Split(tt.ids, ",")
			}
			set, err := inv.Select(ids, migFacts())
			if err != nil {
				t.Fatal(err)
			}
			set.Manage = tt.manage
			nodes, err := inv.Nodes(set, tt.caps)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, n := range nodes {
				got = append(got, fmt.Sprintf("%s %d:%d", strings.TrimPrefix(n.Path, "/dev/"), n.Major, n.Minor))
				if n.HostPath != h.Dir+n.Path {
					t.Errorf("host path %s of %s", n.HostPath, n.Path)
				}
			}
			if strings.Join(got, ", ") != tt.want {
				t.Errorf("got  %s\nwant %s", strings.Join(got, ", "), tt.want)
			}
		})
	}
	t.Run("mode and owner are the host's", func(t *testing.T) {
		nodes, err := inv.Nodes(Set{GPUs: inv.GPUs[:1]}, []string{"graphics"})
		if err != nil {
			t.Fatal(err)
		}
		if n := nodes[3]; n.Path != "/dev/dri/card1" || n.Mode != 0o660 || n.UID != 0 || n.GID != 44 {
			t.Errorf("got %+v", n)
		}
	})
	t.Run("a driver before 550.40 calls itself nvidia-frontend", func(t *testing.T) {
		h := nodeHost(t)
		h.Write("proc/devices", "Character devices:\n195 nvidia-frontend\n238 nvidia-uvm\n")
		if _, err := h.discover().Nodes(Set{GPUs: h.discover().GPUs}, []string{"compute"}); err != nil {
			t.Error(err)
		}
	})
	t.Run("optional nodes that are missing are skipped", func(t *testing.T) {
		h := nodeHost(t)
		for _, name := range []string{"nvidia-uvm-tools", "nvidia-modeset", "dri/card1", "dri/renderD129"} {
			os.Remove(h.Dir + "/dev/" + name)
		}
		inv := h.discover()
		nodes, err := inv.Nodes(Set{GPUs: inv.GPUs[:1]}, []string{"compute", "display"})
		if err != nil || len(nodes) != 3 {
			t.Errorf("got %+v, %v", nodes, err)
		}
	})
	t.Run("without a GPU, compute does not insist on nvidia-uvm", func(t *testing.T) {
		h := nodeHost(t)
		os.Remove(h.Dir + "/dev/nvidia-uvm")
		os.Remove(h.Dir + "/dev/nvidia-uvm-tools")
		if nodes, err := h.discover().Nodes(Set{}, []string{"compute"}); err != nil || len(nodes) != 1 {
			t.Errorf("got %+v, %v", nodes, err)
		}
	})
}

func TestNodesRefuses(t *testing.T) {
	caps := []string{"compute", "graphics"}
	for _, tt := range []struct {
		name   string
		change func(h *fakeHost, dev string)
		want   []string
	}{
		{"a missing GPU node, saying how to make it", func(_ *fakeHost, dev string) { os.Remove(dev + "nvidia2") },
			[]string{"dev/nvidia2 is missing", "nvidia-shimctl prepare"}},
		{"a missing control node", func(_ *fakeHost, dev string) { os.Remove(dev + "nvidiactl") },
			[]string{"dev/nvidiactl is missing", "nvidia-shimctl prepare"}},
		{"a missing nvidia-uvm", func(_ *fakeHost, dev string) { os.Remove(dev + "nvidia-uvm") },
			[]string{"dev/nvidia-uvm is missing", "nvidia-shimctl prepare"}},
		{"T38 a link to the right node", func(_ *fakeHost, dev string) { relink(dev+"nvidia2", dev+"nvidia0") },
			[]string{"dev/nvidia2 is a symbolic link"}},
		{"T38 a regular file", func(h *fakeHost, dev string) { os.Remove(dev + "nvidia2"); h.Write("dev/nvidia2", "") },
			[]string{"dev/nvidia2 is a regular file"}},
		{"T38 an optional node that is a link", func(_ *fakeHost, dev string) { relink(dev+"dri/card1", dev+"dri/card0") },
			[]string{"dev/dri/card1 is a symbolic link"}},
		{"T38 a node with another major", func(h *fakeHost, dev string) { os.Remove(dev + "nvidia2"); h.Node("nvidia2", 8, 2, 0o666) },
			[]string{"dev/nvidia2 is 8:2", "195:2"}},
		{"a node with another minor", func(h *fakeHost, dev string) { os.Remove(dev + "nvidia2"); h.Node("nvidia2", 195, 3, 0o666) },
			[]string{"dev/nvidia2 is 195:3", "195:2"}},
		{"a DRM node of another card", func(h *fakeHost, _ string) { h.Node("dri/card1", 226, 0, 0o666) },
			[]string{"dev/dri/card1 is 226:0", "226:1"}},
		{"T37 a major that changed after the inventory", func(h *fakeHost, _ string) {
			h.Write("proc/devices", strings.Replace(charDevices, "238 nvidia-uvm\n", "511 nvidia-uvm\n", 1))
		}, []string{"dev/nvidia-uvm is 238:0", "511:0"}},
		{"a node whose driver went away, also if a block device has its name", func(h *fakeHost, _ string) {
			h.Write("proc/devices", strings.Replace(charDevices, "238 nvidia-uvm\n", "", 1)+"238 nvidia-uvm\n")
		}, []string{"dev/nvidia-uvm is there", `"nvidia-uvm"`}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h := nodeHost(t)
			inv := h.discover()
			tt.change(h, h.Dir+"/dev/")
			_, err := inv.Nodes(Set{GPUs: inv.GPUs[:1]}, caps)
			simtest.Says(t, err, tt.want...)
		})
	}
}

func relink(path, target string) {
	os.Remove(path)
	os.Symlink(target, path)
}
