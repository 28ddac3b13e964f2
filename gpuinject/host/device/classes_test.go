package device

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simdriver/simtest"
)

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
		for _, class := range []string{"imex", "gds", "gdrcopy", "mofed", "nvswitch"} {
			if nodes, err := inv.ClassNodes(class, nil); err != nil || len(nodes) != 0 {
				t.Errorf("%s: %v, %v", class, nodes, err)
			}
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
		{"a link to the right node (T38)", "", link("nvidia2", "nvidia0"), []string{"dev/nvidia2 is a symbolic link"}},
		{"a regular file (T38)", "", file("nvidia2"), []string{"dev/nvidia2 is a regular file"}},
		{"an optional node that is a link (T38)", "", link("dri/card1", "dri/card0"), []string{"dev/dri/card1 is a symbolic link"}},
		{"a node with another major (T38)", "", node("nvidia2", 8, 2), []string{"dev/nvidia2 is 8:2", "195:2"}},
		{"a node with another minor", "", node("nvidia2", 195, 3), []string{"dev/nvidia2 is 195:3", "195:2"}},
		{"a DRM node of another card", "", node("dri/card1", 226, 0), []string{"dev/dri/card1 is 226:0", "226:1"}},
		{"a major that changed after the inventory (T37)", "", driver("238 nvidia-uvm", "511 nvidia-uvm\n"), []string{"dev/nvidia-uvm is 238:0", "511:0"}},
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
			nodes, err := inv.Nodes(Set{GPUs: inv.GPUs[:1]}, []string{"compute", "graphics"})
			if tt.class != "" {
				nodes, err = inv.ClassNodes(tt.class, nil)
			}
			simtest.Says(t, err, tt.want...)
			bad, _, _ := strings.Cut(tt.want[0], " ")
			if slices.ContainsFunc(nodes, func(n Node) bool { return strings.HasSuffix(n.Path, bad) }) {
				t.Errorf("%s is given: %v", bad, nodes)
			}
		})
	}
}
