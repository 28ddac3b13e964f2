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

func TestMIGDevicesThatCDIGaveAreTakenOver(t *testing.T) {
	h := newMIGHost(t)
	for _, tc := range []struct {
		name  string
		nodes []string
		gpus  []int
		mig   [][2]int // GPU instance, compute instance
		right []string
	}{
		{"one MIG device", append(h.capNodes(0), h.gpuNode(1)), nil, [][2]int{{h.MIG[0].GI, h.MIG[0].CI}}, nil},
		{"two of one GPU instance, and a GPU", append(h.capNodes(1, 2), h.gpuNode(1), h.gpuNode(2)), []int{2}, [][2]int{{h.MIG[1].GI, h.MIG[1].CI}, {h.MIG[2].GI, h.MIG[2].CI}}, nil},
		{"the node of a divided GPU alone", []string{h.gpuNode(1)}, nil, nil, nil},
		{"the right to configure", append(h.capNodes(0), h.gpuNode(1), "/dev/nvidia-caps/nvidia-cap1"), nil, [][2]int{{h.MIG[0].GI, h.MIG[0].CI}}, []string{"config"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			spec := newSpec("NVIDIA_VISIBLE_DEVICES=void", "NVIDIA_DRIVER_CAPABILITIES=compute")
			cdiNodes(t, h, spec, tc.nodes...)
			before := len(spec.Linux.Devices)
			job, err := h.resolve(t, spec)
			if err != nil {
				t.Fatal(err)
			}
			var gpus []int
			var mig [][2]int
			for _, g := range job.Plan.GPUs {
				gpus = append(gpus, g.Index)
			}
			for _, m := range job.Plan.MIG {
				mig = append(mig, [2]int{m.GI, m.CI})
			}
			slices.SortFunc(mig, func(a, b [2]int) int { return slices.Compare(a[:], b[:]) })
			slices.SortFunc(tc.mig, func(a, b [2]int) int { return slices.Compare(a[:], b[:]) })
			if !slices.Equal(gpus, tc.gpus) || !slices.Equal(mig, tc.mig) || !slices.Equal(job.Plan.MIGRights, tc.right) {
				t.Errorf("GPUs %v, MIG devices %v, rights %q; want %v, %v, %q", gpus, mig, job.Plan.MIGRights, tc.gpus, tc.mig, tc.right)
			}
			if err := job.Preview(""); err != nil {
				t.Fatal(err)
			}
			if after := len(job.bundle.Spec.Linux.Devices); after != before {
				t.Errorf("%d nodes became %d", before, after)
			}
		})
	}
}

func TestAMIGDeviceHasNoMPSOfTheHosts(t *testing.T) {
	h := newMIGHost(t)
	daemonsOf(t, h.cfg)
	h.cfg.Container.Sockets = []string{config.MPS}
	for device, want := range map[string]int{"1:0": 0, "0": 1} {
		job, err := h.resolve(t, newSpec("NVIDIA_VISIBLE_DEVICES="+device))
		if err != nil || len(job.Plan.Sockets) != want || want == 0 && !strings.Contains(strings.Join(job.Plan.Notes, "\n"), "a MIG device needs an MPS daemon of its own") {
			t.Errorf("%s: sockets %q, notes %q, %v", device, job.Plan.Sockets, job.Plan.Notes, err)
		}
	}
}
