package device

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"testing"
)

// classHost has nodes of every class. ib_uverbs has two majors, as with more than 32 adapters.
func classHost(t testing.TB) *fakeHost {
	h := newHost(t)
	h.Write("proc/devices", strings.Replace(charDevices, "  1 mem\n",
		"  1 mem\n 10 misc\n231 infiniband_verbs\n232 infiniband_verbs\n234 gdrdrv\n235 nvidia-fs0\n236 nvidia-fs1\n239 nvidia-nvswitch\n242 nvidia-caps-imex-channels\n", 1))
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

func TestClassNodesRefuses(t *testing.T) {
	remake := func(name string, major, minor uint32) func(*fakeHost, string) {
		return func(h *fakeHost, _ string) { h.Node(name, major, minor, 0o666) }
	}
	drop := func(driver string) func(*fakeHost, string) {
		return func(h *fakeHost, _ string) {
			data, err := os.ReadFile(h.cfg.ProcRoot + "/devices")
			if err != nil {
				h.Fatal(err)
			}
			h.Write("proc/devices", strings.Replace(string(data), driver+"\n", "x\n", 1))
		}
	}
	for _, tt := range []struct {
		name, class string
		change      func(h *fakeHost, dev string)
		want        string
	}{
		{"a link to another channel", "imex", func(_ *fakeHost, dev string) {
			relink(dev+"nvidia-caps-imex-channels/channel2", dev+"nvidia-caps-imex-channels/channel0")
		}, "channel2 is a symbolic link"},
		{"a channel whose minor is another's", "imex", remake("nvidia-caps-imex-channels/channel2", 242, 0), "channel2 is 242:0"},
		{"a channel of another driver", "imex", remake("nvidia-caps-imex-channels/channel2", 195, 2), "channel2 is 195:2"},
		{"an nvidia-fs node of another driver", "gds", remake("nvidia-fs0", 195, 0), "nvidia-fs0 is 195:0"},
		{"an adapter of another driver", "mofed", remake("infiniband/uverbs0", 8, 0), "uverbs0 is 8:0"},
		{"a misc device that is not rdma_cm", "mofed", remake("infiniband/rdma_cm", 10, 200), "rdma_cm is 10:200"},
		{"rdma_cm without its module", "mofed", func(h *fakeHost, _ string) { h.Write("proc/misc", "200 tun\n") }, "rdma_cm is 10:122"},
		{"gdrdrv after its module went", "gdrcopy", drop("gdrdrv"), "gdrdrv is there"},
		{"a file for gdrdrv", "gdrcopy", func(h *fakeHost, dev string) { os.Remove(dev + "gdrdrv"); h.Write("dev/gdrdrv", "") }, "gdrdrv is a regular file"},
		{"a switch with another's minor", "nvswitch", remake("nvidia-nvswitch0", 239, 255), "nvswitch0 is 239:255"},
		{"a control node that is a switch's", "nvswitch", remake("nvidia-nvswitchctl", 239, 0), "nvswitchctl is 239:0"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h := classHost(t)
			inv := h.discover()
			tt.change(h, h.Dir+"/dev/")
			nodes, err := inv.ClassNodes(tt.class, nil)
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Fatalf("got %v, %v, want an error with %q", nodes, err, tt.want)
			}
			bad, _, _ := strings.Cut(tt.want, " ")
			if slices.ContainsFunc(nodes, func(n Node) bool { return strings.HasSuffix(n.Path, bad) }) {
				t.Errorf("%s is given: %v", bad, nodes)
			}
		})
	}
}
