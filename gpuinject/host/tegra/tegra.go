package tegra

import (
	"bytes"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host/device"
)

// Name is the platform's name in JSON.
const Name = "tegra"

// releaseFile is below the driver root, familyFile in sysfs.
const (
	releaseFile = "/etc/nv_tegra_release"
	familyFile  = "devices/soc0/family"
)

// Is reports whether this host is a Tegra, by the criteria of NVIDIA's container toolkit. Its
// kernel module for displays reports no GPU to procfs, or one without a UUID; later modules report
// the GPU itself, by name.
func Is(cfg config.Host, gpus []device.GPU) bool {
	discrete := func(g device.GPU) bool {
		return g.UUID != "" && !strings.Contains(g.Model, "(nvgpu)") && !strings.Contains(g.Model, "NVIDIA Thor")
	}
	if slices.ContainsFunc(gpus, discrete) {
		return false
	}
	if _, err := os.Stat(filepath.Join(cfg.DriverRoot, releaseFile)); err == nil {
		return true
	}
	family, err := device.ReadFile(filepath.Join(cfg.SysRoot, familyFile))
	return err == nil && bytes.HasPrefix(bytes.ToLower(family), []byte("tegra"))
}

// GPUs returns the GPUs, even if procfs lists none. NVIDIA's device plugin calls the first one
// "tegra".
func GPUs(gpus []device.GPU) []device.GPU {
	gpus = slices.Clone(gpus)
	if len(gpus) == 0 {
		gpus = []device.GPU{{Minor: -1, Model: "the GPU of this Tegra"}}
	}
	gpus[0].Alias = Name
	return gpus
}

// Nodes returns the nodes at the paths below /dev that the lists name ("/dev/nvmap",
// "/dev/nvhost-*"). A pattern's star stays in its directory; a match that is not a character device
// is left out, and so is what the machine does not have, as the lists are for a family of machines.
//
// Nothing says which numbers such a node must have: all that can be verified is that it is a
// character device and not a link.
func Nodes(cfg config.Host, paths []string) ([]device.Node, error) {
	var nodes []device.Node
	for _, p := range paths {
		name := path.Clean("/" + p)
		if !strings.HasPrefix(name, "/dev/") {
			return nil, fmt.Errorf("device node %.256q is not below /dev", p)
		}
		found, err := filepath.Glob(filepath.Join(cfg.DevRoot, name))
		if err != nil {
			return nil, fmt.Errorf("device node %.256q: %w", p, err)
		}
		for _, file := range found {
			node, err := device.StatNode(file)
			if err != nil && strings.ContainsAny(name, "*?[") {
				continue // "/dev/nvidia*" matches the directory nvidia-caps
			}
			if err != nil {
				return nil, fmt.Errorf("%w: take it from the lists below /etc/nvidia-container-runtime", err)
			}
			if !slices.ContainsFunc(nodes, func(n device.Node) bool { return n.HostPath == file }) {
				node.Path = strings.TrimPrefix(file, strings.TrimSuffix(cfg.DevRoot, "/"))
				nodes = append(nodes, node)
			}
		}
	}
	if len(nodes) == 0 {
		return nil, fmt.Errorf("none of the device nodes of this Tegra's lists exists below %s", filepath.Join(cfg.DevRoot, "dev"))
	}
	return nodes, nil
}
