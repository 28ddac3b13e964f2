package device

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/devnode"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testtree"
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
		{"graphics adds the render node of that GPU only", "0", []string{"graphics"}, nil,
			"nvidiactl 195:255, nvidia2 195:2, dri/renderD129 226:129"},
		{"display adds modeset and both DRM nodes", "0", []string{"display"}, nil,
			"nvidiactl 195:255, nvidia2 195:2, nvidia-modeset 195:254, dri/card1 226:1, dri/renderD129 226:129"},
		{"display for a GPU without DRM nodes", "1", []string{"display"}, nil,
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
		{"a MIG profile for graphics has the render node", "0:4", []string{"graphics"}, nil,
			"nvidiactl 195:255, nvidia2 195:2, dri/renderD129 226:129, nvidia-caps/nvidia-cap354 241:354, nvidia-caps/nvidia-cap355 241:355"},
		{"another MIG profile has none", "0:1", []string{"graphics"}, nil,
			"nvidiactl 195:255, nvidia2 195:2, nvidia-caps/nvidia-cap363 241:363, nvidia-caps/nvidia-cap364 241:364"},
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
		nodes, err := inv.Nodes(Set{GPUs: inv.GPUs[:1]}, []string{"display"})
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

// classHost is nodeHost with nodes of every class.
func classHost(t testing.TB) *fakeHost {
	h := nodeHost(t)
	h.Write("proc/misc", "122 rdma_cm\n200 tun\n")
	for _, n := range []uint32{0, 2, 11} {
		h.Node(fmt.Sprintf("nvidia-caps-imex-channels/channel%d", n), 242, n, 0o666)
	}
	h.Node("nvidia-fs0", 235, 0, 0o666)
	h.Node("nvidia-fs1", 236, 0, 0o666)
	h.Write("dev/nvidia-fs-note", "")
	h.Node("gdrdrv", 234, 0, 0o666)
	h.Node("infiniband/uverbs0", 231, 192, 0o666)
	h.Node("infiniband/uverbs32", 232, 0, 0o666)
	h.Node("infiniband/umad0", 231, 0, 0o600)
	h.Node("infiniband/rdma_cm", 10, 122, 0o666)
	h.Node("nvidia-nvswitchctl", 239, 255, 0o666)
	h.Node("nvidia-nvswitch0", 239, 0, 0o666)
	return h
}

func TestClassNodes(t *testing.T) {
	inv := classHost(t).discover()
	for _, tt := range []struct {
		class    string
		channels []int
		want     string // nodes; "one" after those that are handed out by themselves
	}{
		{"imex", []int{2}, "/dev/nvidia-caps-imex-channels/channel2 242:2 one"},
		{"imex", nil, "/dev/nvidia-caps-imex-channels/channel0 242:0 one, /dev/nvidia-caps-imex-channels/channel2 242:2 one, /dev/nvidia-caps-imex-channels/channel11 242:11 one"},
		{"gds", nil, "/dev/nvidia-fs0 235:0, /dev/nvidia-fs1 236:0"},
		{"gdrcopy", nil, "/dev/gdrdrv 234:0"},
		{"mofed", nil, "/dev/infiniband/uverbs0 231:192 one, /dev/infiniband/uverbs32 232:0 one, /dev/infiniband/rdma_cm 10:122"},
		{"nvswitch", []int{7}, "/dev/nvidia-nvswitchctl 239:255, /dev/nvidia-nvswitch0 239:0 one"},
	} {
		t.Run(tt.class, func(t *testing.T) {
			nodes, err := inv.ClassNodes(tt.class, tt.channels)
			if got := classNames(nodes); err != nil || got != tt.want {
				t.Errorf("got  %s, %v\nwant %s", got, err, tt.want)
			}
			for _, n := range nodes {
				if n.Mode != 0o666 || n.HostPath != inv.Config.DevRoot+n.Path {
					t.Errorf("got %+v", n)
				}
			}
		})
	}
	t.Run("a host without any has none, and that is no error", func(t *testing.T) {
		inv := newHost(t).discover()
		for _, class := range devnode.Names() {
			if nodes, err := inv.ClassNodes(class, nil); err != nil || len(nodes) != 0 {
				t.Errorf("%s: %v, %v", class, nodes, err)
			}
		}
	})
	t.Run("a channel beyond those of the driver", func(t *testing.T) {
		_, err := inv.ClassNodes("imex", []int{4095})
		if !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "channel4095 is missing, and the driver has the channels 0 to 2047: load the nvidia module with NVreg_ImexChannelCount=4096") {
			t.Errorf("error %v", err)
		}
	})
	t.Run("a channel without a node is an error that says how to make it, beside those that are there", func(t *testing.T) {
		nodes, err := inv.ClassNodes("imex", []int{0, 5})
		if !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "channel5 is missing: run \"nvidia-shimctl prepare --imex-channels=5\"") {
			t.Errorf("error %v", err)
		}
		if got := classNames(nodes); got != "/dev/nvidia-caps-imex-channels/channel0 242:0 one" {
			t.Errorf("got %s", got)
		}
	})
}

func classNames(nodes []Node) string {
	var list []string
	for _, n := range nodes {
		s := fmt.Sprintf("%s %d:%d", n.Path, n.Major, n.Minor)
		if n.Individual {
			s += " one"
		}
		list = append(list, s)
	}
	return strings.Join(list, ", ")
}

func TestRefusedNodes(t *testing.T) {
	type change func(h *fakeHost)
	node := func(name string, major, minor uint32) change {
		return func(h *fakeHost) { h.Node(name, major, minor, 0o666) }
	}
	remove := func(name string) change {
		return func(h *fakeHost) { h.Check(os.Remove(h.Dir + "/dev/" + name)) }
	}
	file := func(name string) change {
		return func(h *fakeHost) { remove(name)(h); h.Write("dev/"+name, "") }
	}
	link := func(name, target string) change {
		return func(h *fakeHost) { remove(name)(h); h.Link("dev/"+name, h.Dir+"/dev/"+target) }
	}
	driver := func(line, now string) change {
		return func(h *fakeHost) { h.Write("proc/devices", strings.Replace(charDevices, line+"\n", now, 1)) }
	}
	channel := "nvidia-caps-imex-channels/channel"
	const prepare = "nvidia-shimctl prepare"
	for _, tt := range []struct {
		name, class string // without a class, the nodes of a GPU
		change      change
		want        []string
	}{
		{"a missing GPU node, saying how to make it", "", remove("nvidia2"), []string{"dev/nvidia2 is missing", prepare}},
		{"a missing control node", "", remove("nvidiactl"), []string{"dev/nvidiactl is missing", prepare}},
		{"a missing nvidia-uvm", "", remove("nvidia-uvm"), []string{"dev/nvidia-uvm is missing", prepare}},
		{"T38 a link to the right node", "", link("nvidia2", "nvidia0"), []string{"dev/nvidia2 is a symbolic link"}},
		{"T38 a regular file", "", file("nvidia2"), []string{"dev/nvidia2 is a regular file"}},
		{"T38 an optional node that is a link", "", link("dri/card1", "dri/card0"), []string{"dev/dri/card1 is a symbolic link"}},
		{"T38 a node with another major", "", node("nvidia2", 8, 2), []string{"dev/nvidia2 is 8:2", "195:2"}},
		{"a node with another minor", "", node("nvidia2", 195, 3), []string{"dev/nvidia2 is 195:3", "195:2"}},
		{"a DRM node of another card", "", node("dri/card1", 226, 0), []string{"dev/dri/card1 is 226:0", "226:1"}},
		{"T37 a major that changed after the inventory", "", driver("238 nvidia-uvm", "511 nvidia-uvm\n"), []string{"dev/nvidia-uvm is 238:0", "511:0"}},
		{"a node whose driver went away, also if a block device has its name", "", func(h *fakeHost) {
			h.Write("proc/devices", strings.Replace(charDevices, "238 nvidia-uvm\n", "", 1)+"238 nvidia-uvm\n")
		}, []string{"dev/nvidia-uvm is there", `"nvidia-uvm"`}},

		{"a link to another channel", "imex", link(channel+"2", channel+"0"), []string{"channel2 is a symbolic link"}},
		{"a channel whose minor is another's", "imex", node(channel+"2", 242, 0), []string{"channel2 is 242:0"}},
		{"a channel of another driver", "imex", node(channel+"2", 195, 2), []string{"channel2 is 195:2"}},
		{"an nvidia-fs node of another driver", "gds", node("nvidia-fs0", 195, 0), []string{"nvidia-fs0 is 195:0"}},
		{"an adapter of another driver", "mofed", node("infiniband/uverbs0", 8, 0), []string{"uverbs0 is 8:0"}},
		{"a misc device that is not rdma_cm", "mofed", node("infiniband/rdma_cm", 10, 200), []string{"rdma_cm is 10:200"}},
		{"rdma_cm without its module", "mofed", func(h *fakeHost) { h.Write("proc/misc", "200 tun\n") }, []string{"rdma_cm is 10:122"}},
		{"gdrdrv after its module went", "gdrcopy", driver("234 gdrdrv", ""), []string{"gdrdrv is there"}},
		{"a file for gdrdrv", "gdrcopy", file("gdrdrv"), []string{"gdrdrv is a regular file"}},
		{"a switch with another's minor", "nvswitch", node("nvidia-nvswitch0", 239, 255), []string{"nvswitch0 is 239:255"}},
		{"a control node that is a switch's", "nvswitch", node("nvidia-nvswitchctl", 239, 0), []string{"nvswitchctl is 239:0"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h := classHost(t)
			inv := h.discover()
			tt.change(h)
			nodes, err := inv.Nodes(Set{GPUs: inv.GPUs[:1]}, []string{"compute", "display"})
			if tt.class != "" {
				nodes, err = inv.ClassNodes(tt.class, nil)
			}
			testtree.Says(t, err, tt.want...)
			bad, _, _ := strings.Cut(tt.want[0], " ")
			if slices.ContainsFunc(nodes, func(n Node) bool { return strings.HasSuffix(n.Path, bad) }) {
				t.Errorf("%s is given: %v", bad, nodes)
			}
		})
	}
}
