package device

import (
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
)

// place is where a device is on the PCI bus. An empty field is unknown.
type place struct {
	bridge string // its host bridge: "pci0000:17"
	numa   string // its NUMA node: "0"
}

// hostBridge, as other expressions, is compiled at its first use: few processes need it.
var hostBridge = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile("^pci[0-9a-f]{4,}:[0-9a-f]{2}$") })

// placeOf reads the place of a device from its directory in sysfs. A virtual device has none.
func placeOf(dir string) (p place) {
	real, err := filepath.EvalSymlinks(dir) //nolint:forbidigo // the host's own sysfs
	if err != nil {
		return p
	}
	parts := strings.Split(real, "/")
	if i := slices.IndexFunc(parts, hostBridge().MatchString); i >= 0 {
		p.bridge = parts[i]
	}
	node, err := ReadFile(filepath.Join(real, "numa_node"))
	if text := strings.TrimSpace(string(node)); err == nil && !isNotNumber(text) {
		p.numa = text
	}
	return p
}

// Near divides nodes of RDMA adapters, by their names, into those near one of the GPUs, with the
// nodes that belong to no adapter, and the others. An adapter is near a GPU if both are below one
// PCI host bridge, as below one switch. For a GPU that has none there, as in a virtual machine that
// gives each device a bridge of its own, it is near on the same NUMA node. Where sysfs does not
// place the adapter or the GPU, it counts as near.
func (inv Inventory) Near(nodes []Node, gpus []GPU) (near, far []Node) {
	places := map[string]place{}
	for _, n := range nodes {
		if n.Individual {
			places[n.Path] = placeOf(filepath.Join(inv.Config.SysRoot, "class/infiniband_verbs", path.Base(n.Path), "device"))
		}
	}
	isNear := map[string]bool{}
	for _, gpu := range gpus {
		at := placeOf(filepath.Join(inv.Config.SysRoot, "bus/pci/devices", gpu.BusID))
		same := func(is func(place) bool) (found bool) {
			for name, p := range places {
				if is(p) {
					isNear[name], found = true, true
				}
			}
			return found
		}
		same(func(p place) bool { return p.bridge == "" || at.bridge == "" })
		if !same(func(p place) bool { return p.bridge == at.bridge && at.bridge != "" }) {
			same(func(p place) bool { return p.numa == at.numa && at.numa != "" })
		}
	}
	for _, n := range nodes {
		if !n.Individual || isNear[n.Path] {
			near = append(near, n)
		} else {
			far = append(far, n)
		}
	}
	return near, far
}
