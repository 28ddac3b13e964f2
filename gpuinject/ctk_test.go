package gpuinject

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/ldcache"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simdriver/sim"
)

// ctkSpec places what a version of nvidia-ctk wrote in a mode (testdata/nvidia-ctk/generate.sh) in a
// directory, with the host's paths filled in.
func ctkSpec(t testing.TB, d *sim.Driver, dir, name string) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata/nvidia-ctk", name))
	check(t, err)
	filledIn := strings.NewReplacer("DEVROOT", d.DevRoot, "ROOT", d.Root, "VERSION", d.Version, "TRIPLE", ldcache.ABI64.Triple)
	writeFile(t, filepath.Join(dir, name), filledIn.Replace(string(data)), 0o644)
}

// What each version of nvidia-ctk writes in each of its modes is applied as containerd and Docker do, to
// an image that asks for every GPU, with and without the hooks, which can be disabled.
func TestWhatEveryVersionOfNVIDIACTKWrites(t *testing.T) {
	tegra := newHost(t, sim.Options{GPUs: 1})
	check(t, tegra.BecomeTegra(t.Context()))
	const alone = "left alone"
	modes := []struct {
		mode, device, want string // want with the hooks; without them, all are left alone
		host               *testHost
	}{
		{mode: "nvml", device: "nvidia.com/gpu=1", want: "GPU 1"},
		{mode: "nvml", device: "nvidia.com/gpu=all", want: "every GPU"},
		{mode: "management", device: "nvidia.com/management=all", want: "every GPU, `nvidia-cap1`, `nvidia-cap2`, `channel0`, `channel1`, `channel2`"},
		{mode: "gds", device: "nvidia.com/gds=all", want: alone},
		{mode: "gdrcopy", device: "nvidia.com/gdrcopy=all", want: alone},
		{mode: "mofed", device: "nvidia.com/mofed=all", want: alone},
		{mode: "nvswitch", device: "nvidia.com/nvswitch=all", want: alone},
		{mode: "imex-channel", device: "nvidia.com/imex-channel=1", want: alone},
		{mode: "csv", device: "nvidia.com/gpu=0", want: "GPU 0, `nvmap`, `nvhost-gpu`, `as`", host: tegra},
	}
	// What is not there, this version could not write: testdata/nvidia-ctk/generate.sh says why.
	absent := []string{"1.18.2-mofed.yaml", "1.18.2-nvswitch.yaml"}
	for _, version := range []string{"1.18.2", "1.19.1", "1.20.2"} {
		var tb table
		tb.env = append(devices("all"), caps("utility")...)
		tb.show = showAsked
		for _, m := range modes {
			name := version + "-" + m.mode + ".yaml"
			if slices.Contains(absent, name) {
				continue
			}
			h := m.host
			if h == nil {
				h = simulatedHost(t)
			}
			dir := t.TempDir()
			check(t, os.Chmod(dir, 0o755))
			ctkSpec(t, h.Driver, dir, name)
			cdi := func(s *specs.Spec) { applyCDI(t, s, dir, m.device) }
			tb.rows = append(tb.rows, row{name: name + " " + m.device, host: h, spec: cdi, want: m.want},
				row{name: name + " " + m.device + " without hooks", host: h, spec: all(cdi, func(s *specs.Spec) { s.Hooks = nil }), want: alone})
		}
		t.Run(version, tb.run)
	}
}
