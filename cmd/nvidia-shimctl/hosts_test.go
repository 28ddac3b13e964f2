package main

import (
	"strings"
	"testing"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simdriver/sim"
)

// Hosts without the NVIDIA kernel module of PCI GPUs, and a container's own.
func TestInfoPlanAndCheckKnowOtherHosts(t *testing.T) {
	for _, tt := range []struct {
		name, driver, device string
		become               func(t *testing.T, d *sim.Driver) error
	}{
		{"WSL2", "of Windows, by WSL2", "/dev/dxg", func(t *testing.T, d *sim.Driver) error { return d.BecomeWSL(t.Context()) }},
		{"a Tegra", "of a Tegra, by its lists of files", "/dev/nvmap", func(t *testing.T, d *sim.Driver) error { return d.BecomeTegra(t.Context()) }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			d := simulate(t)
			if err := tt.become(t, d); err != nil {
				t.Fatal(err)
			}
			status, out, errs := ctl(t, "--config", d.ConfigPath, "info")
			if status != 0 || errs != "" || !strings.Contains(out, "Driver "+tt.driver) || !strings.Contains(out, "libcuda.so.1.1") {
				t.Errorf("info: status %d, %s\n%s", status, errs, out)
			}
			status, out, errs = ctl(t, "--config", d.ConfigPath, "plan", "--env", "NVIDIA_VISIBLE_DEVICES=all")
			if status != 0 || errs != "" || !strings.Contains(out, tt.driver) || !strings.Contains(out, tt.device+" (") {
				t.Errorf("plan: status %d, %s\n%s", status, errs, out)
			}
			cfg, err := config.Load(d.ConfigPath)
			if err != nil {
				t.Fatal(err)
			}
			n := &node{cfg: cfg}
			for what, list := range map[string][]finding{"driver": checkDriver(t.Context(), n), "nodes": checkNodes(t.Context(), n), "libraries": checkLibraries(t.Context(), n)} {
				if len(list) != 1 || list[0].Level != fine("").Level {
					t.Errorf("check of %s: %+v", what, list)
				}
			}
		})
	}
}
