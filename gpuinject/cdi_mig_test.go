package gpuinject

import (
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
)

// cdiNodes makes spec one that CDI edited: nodes with rules that allow mknod, a hook.
func cdiNodes(t *testing.T, h *migHost, spec *specs.Spec, nodes ...string) {
	t.Helper()
	// A privileged container has them all.
	privileged := newSpec("NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_MIG_CONFIG_DEVICES=all", "NVIDIA_MIG_MONITOR_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=compute")
	privileged.Process.Capabilities.Bounding, privileged.Linux.MaskedPaths = []string{"CAP_SYS_ADMIN"}, nil
	all, err := h.resolve(t, privileged)
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range all.nodes {
		if !slices.Contains(nodes, n.Path) && n.Path != "/dev/nvidiactl" && !strings.HasPrefix(n.Path, "/dev/nvidia-uvm") {
			continue
		}
		major, minor := int64(n.Major), int64(n.Minor)
		spec.Linux.Devices = append(spec.Linux.Devices, specs.LinuxDevice{Path: n.Path, Type: "c", Major: major, Minor: minor})
		spec.Linux.Resources.Devices = append(spec.Linux.Resources.Devices, specs.LinuxDeviceCgroup{Allow: true, Type: "c", Major: &major, Minor: &minor, Access: "rwm"})
	}
	spec.Hooks = &specs.Hooks{CreateContainer: []specs.Hook{{Path: "/usr/bin/nvidia-cdi-hook", Args: []string{"nvidia-cdi-hook", "update-ldcache"}}}}
}

func TestMIGDevicesThatAreTakenOver(t *testing.T) {
	h := newMIGHost(t)
	edited := func(nodes ...string) func(*specs.Spec) {
		return func(s *specs.Spec) { cdiNodes(t, h, s, nodes...) }
	}
	contractSection{host: h, env: []string{"NVIDIA_VISIBLE_DEVICES=void", "NVIDIA_DRIVER_CAPABILITIES=compute"}, show: showMIG, cases: []contractCase{
		{name: "one", spec: edited(append(h.capNodes(0), h.gpuNode(1))...), here: "9/0 of GPU 1"},
		{name: "two of one GPU instance, and a GPU", spec: edited(append(h.capNodes(1, 2), h.gpuNode(1), h.gpuNode(2))...), here: "GPU 2, 5/0 of GPU 1, 5/1 of GPU 1"},
		{name: "the node of the GPU alone", spec: edited(h.gpuNode(1)), here: ""},
		{name: "the right to configure", spec: edited(append(h.capNodes(0), h.gpuNode(1), "/dev/nvidia-caps/nvidia-cap1")...), here: "9/0 of GPU 1, the right `mig/config`"},
	}}.run(t)
}

func TestMPSOfMIG(t *testing.T) {
	h := newMIGHost(t)
	daemonsOf(t, h.cfg)
	h.cfg.Container.Sockets = []string{config.MPS}
	for device, want := range map[string]int{"1:0": 0, "0": 1} {
		plan, err := h.resolve(t, newSpec("NVIDIA_VISIBLE_DEVICES="+device))
		if err != nil || len(plan.Sockets) != want || want == 0 && !strings.Contains(strings.Join(plan.Notes, "\n"), "a MIG device needs an MPS daemon of its own") {
			t.Errorf("%s: sockets %q, notes %q, %v", device, plan.Sockets, plan.Notes, err)
		}
	}
}
