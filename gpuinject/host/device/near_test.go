package device

import (
	"path"
	"strings"
	"testing"
)

func TestNear(t *testing.T) {
	const gpu0, gpu1 = "bus/pci/devices/0000:01:00.0", "bus/pci/devices/0000:02:00.0"
	verbs := func(n string) string { return "class/infiniband_verbs/uverbs" + n + "/device" }
	// A GPU and an adapter below one switch of each of two host bridges, a third adapter elsewhere.
	usual := map[string]string{
		gpu0: "pci0000:17/0000:17:01.0/0000:18:00.0 0", gpu1: "pci0000:97/0000:97:01.0/0000:98:00.0 1",
		verbs("0"): "pci0000:17/0000:17:01.0/0000:19:00.0 0", verbs("1"): "pci0000:97/0000:97:02.0/0000:9a:00.0 1", verbs("2"): "pci0000:4a/0000:4a:00.0 0",
	}
	with := func(changes ...string) map[string]string {
		m := map[string]string{}
		for name, at := range usual {
			m[name] = at
		}
		for i := 0; i < len(changes); i += 2 {
			m[changes[i]] = changes[i+1]
		}
		return m
	}
	for _, tt := range []struct {
		name   string
		places map[string]string
		gpus   []string
		want   string
	}{
		{"below one host bridge", usual, []string{"0000:01:00.0"}, "uverbs0 rdma_cm"},
		{"of several GPUs", usual, []string{"0000:01:00.0", "0000:02:00.0"}, "uverbs0 uverbs1 rdma_cm"},
		{"below one host bridge for all", with(verbs("1"), "pci0000:17/0000:17:03.0 1", verbs("2"), "pci0000:17/0000:17:04.0 1"), []string{"0000:01:00.0"}, "uverbs0 uverbs1 uverbs2 rdma_cm"},
		{"a virtual machine with a bridge for each device", with(gpu0, "pci0001:00/0001:00:00.0 0", verbs("0"), "pci0101:00/0101:00:02.0 0"), []string{"0000:01:00.0"}, "uverbs0 uverbs2 rdma_cm"},
		{"a GPU of such a machine without a NUMA node", with(gpu0, "pci0001:00/0001:00:00.0 -1"), []string{"0000:01:00.0"}, "rdma_cm"},
		{"adapters without a NUMA node", with(gpu0, "pci0001:00/0001:00:00.0 0", verbs("0"), "pci0000:33/0000:33:00.0 -1"), []string{"0000:01:00.0"}, "uverbs2 rdma_cm"},
		{"a GPU that sysfs does not place", with(gpu0, "", gpu1, ""), []string{"0000:01:00.0"}, "uverbs0 uverbs1 uverbs2 rdma_cm"},
		{"an adapter without a device", with(verbs("1"), ""), []string{"0000:01:00.0"}, "uverbs0 uverbs1 rdma_cm"},
		{"a virtual adapter", with(verbs("1"), "virtual/net/eth0 0"), []string{"0000:01:00.0"}, "uverbs0 uverbs1 rdma_cm"},
		{"no GPU", usual, nil, "rdma_cm"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h := newHost(t)
			inv := h.discover()
			for name, at := range tt.places {
				if device, numa, ok := strings.Cut(at, " "); ok {
					h.Write("sys/devices/"+device+"/numa_node", numa+"\n")
					h.Link("sys/"+name, path.Join(inv.Config.SysRoot, "devices", device))
				}
			}
			nodes := []Node{{Path: "/dev/infiniband/uverbs0", Individual: true}, {Path: "/dev/infiniband/uverbs1", Individual: true},
				{Path: "/dev/infiniband/uverbs2", Individual: true}, {Path: "/dev/infiniband/rdma_cm"}}
			var gpus []GPU
			for _, bus := range tt.gpus {
				gpus = append(gpus, GPU{BusID: bus})
			}
			near, far := inv.Near(nodes, gpus)
			var got []string
			for _, n := range near {
				got = append(got, path.Base(n.Path))
			}
			if strings.Join(got, " ") != tt.want || len(near)+len(far) != len(nodes) {
				t.Errorf("near %v, far %v, want %s", got, far, tt.want)
			}
		})
	}
}
