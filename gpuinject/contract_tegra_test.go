package gpuinject

import (
	"path/filepath"
	"testing"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simdriver/sim"
)

// showTegra shows the GPUs, how the host was taken, and forward compatibility.
func showTegra(p Plan) string {
	s := showGPUs(p)
	if p.Platform == "" {
		s += ", as on an ordinary host"
	}
	if p.Linker.Compat != "" {
		s += ", with " + p.Linker.Compat
	}
	return s
}

func tegraContract(t *testing.T) []contractSection {
	d, cfg := newHost(t, sim.Options{GPUs: 1})
	if err := d.BecomeTegra(t.Context()); err != nil {
		t.Fatal(err)
	}
	jetson := &migHost{Driver: d, cfg: cfg}
	other := *cfg
	other.Host.StateDir = filepath.Join(t.TempDir(), "state") // without NVML's kept answer
	silent := &migHost{Driver: d, cfg: &other, silent: true}
	d, cfg = newHost(t, sim.Options{GPUs: 1})
	writeFile(t, filepath.Join(d.Root, "etc/nv_tegra_release"), "# R38 (release)\n", 0o444)
	thor := &migHost{Driver: d, cfg: cfg}
	orin := func(root string) {
		writeFile(t, filepath.Join(root, "usr/local/cuda/compat_orin/libcuda.so.999.88"), "x", 0o644)
	}
	const (
		csv = "same, by csv lists"
	)
	return []contractSection{{
		title: "Tegra", host: jetson, show: showTegra,
		cases: []contractCase{
			{name: "all", env: devices("all"), here: "GPU 0", jit: csv},
			{name: "an index", env: devices("0"), here: "GPU 0", jit: csv},
			{name: "the name of NVIDIA's device plugin", env: devices("tegra"), here: "GPU 0", jit: csv},
			{name: "none", env: devices("none"), here: "the driver without a GPU"},
			{name: "a GPU that it does not have", env: devices("1"), here: "refused: unknown GPU"},
			{name: "a CUDA", env: append(devices("all"), "NVIDIA_REQUIRE_CUDA=cuda>=12"), here: "GPU 0", jit: "checked with libcuda; only `cuda` and `arch` count"},
			{name: "a CUDA, without NVML", env: append(devices("all"), "NVIDIA_REQUIRE_CUDA=cuda>=12"), with: "no `libnvidia-ml.so.1`", host: silent, here: "refused: cannot be checked", jit: "checked with libcuda; only `cuda` and `arch` count"},
			{name: "a compatibility package for Orin", env: devices("all"), with: "`/usr/local/cuda/compat_orin` in the image", image: orin, here: "GPU 0", jit: "its libraries, by a hook"},
			{name: "beside a discrete GPU", env: devices("all"), with: "Thor with a discrete GPU", host: thor, here: "GPU 0, as on an ordinary host", jit: "the discrete GPU and the files of the csv lists"},
		},
	}}
}
