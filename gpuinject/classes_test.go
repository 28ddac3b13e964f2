package gpuinject

import (
	"fmt"
	"slices"
	"testing"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/devnode"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/place"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/procmask"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simdriver/sim"
)

// TestAClassIsARowOfTheTable adds a class to the table and nothing else: configuration, request,
// grant, nodes, files and mask follow. Its node is that of GDRCopy.
func TestAClassIsARowOfTheTable(t *testing.T) {
	h := newHost(t, sim.Options{GPUs: 1, Others: sim.Others{GDRCopy: true}})
	was := devnode.Classes
	t.Cleanup(func() { devnode.Classes = was })
	devnode.Classes = append(slices.Clone(was), devnode.Class{
		Name: "invented", CDIKind: "invented", Variable: "NVIDIA_INVENTED",
		Nodes: []devnode.Node{{Name: "gdrdrv", Driver: "gdrdrv"}},
		Files: []devnode.File{{Path: "/etc/invented.json"}}, Mask: []string{"invented/version"},
	})
	writeFile(t, h.cfg.Host.DriverRoot+"/etc/invented.json", "{}", 0o644)
	writeFile(t, h.cfg.Host.ProcRoot+"/driver/invented/version", "1", 0o444)
	for name, env := range map[string][]string{
		"by its variable": {"NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_INVENTED=enabled"},
		"by its CDI name": {"NVIDIA_VISIBLE_DEVICES=0,nvidia.com/invented=all"},
	} {
		p, err := h.resolve(t, newSpec(env...))
		check(t, err)
		node := slices.ContainsFunc(p.Devices, func(d PlanDevice) bool { return d.Path == "/dev/gdrdrv" })
		file := slices.ContainsFunc(p.Mounts, func(m place.Mount) bool { return m.Destination == "/etc/invented.json" })
		mask := slices.ContainsFunc(p.Changes.Mask, func(f procmask.File) bool { return f.Path == "invented/version" })
		if got := fmt.Sprint(p.Classes, node, file, mask); got != "[invented] true true true" {
			t.Errorf("%s: %s", name, got)
		}
	}
	file := t.TempDir() + "/config.toml"
	writeFile(t, file, "[policy]\nallow-from-environment = [\"invented\"]\n", 0o600)
	if _, err := config.Load(file); err != nil {
		t.Error(err)
	}
}
