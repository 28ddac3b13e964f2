package gpuinject

import (
	"strings"
	"testing"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host/device"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/verdict"
)

// cudaImage is a requirement as in CUDA images: the main condition, and brands with the driver
// branches that the image's compatibility package serves.
const cudaImage = "cuda>=13.1 brand=unknown,driver>=535,driver<536 brand=nvidia,driver>=580,driver<581 brand=geforcertx,driver>=570,driver<571"

func TestRequirements(t *testing.T) {
	const off = " ... NVIDIA_DISABLE_REQUIRE=true"
	cuda := func(text string) string { return "NVIDIA_REQUIRE_CUDA=" + text }
	nvml, silent := simulatedHost(t), simulatedHost(t)
	silent.silent = true
	version := "this host has driver " + simulated.Version
	table{
		show: func(p Plan) string {
			var list []string
			for _, r := range p.Requirements {
				list = append(list, r.Variable+" by "+strings.Join(r.SatisfiedBy, " "))
			}
			return strings.Join(list, ", ")
		},
		host: nvml,
		rows: []row{
			{name: "an older CUDA than the image needs", env: append(devices("0"), cuda("cuda>=13.1")), kind: verdict.KindPrecondition,
				want: `refused: NVIDIA_REQUIRE_CUDA: "cuda>=13.1" is not satisfied: ` + version + ", CUDA 13.0: update the driver or use another image; or set NVIDIA_DISABLE_REQUIRE=true"},
			{name: "an older CUDA, but a driver that the image's compatibility package serves", env: append(devices("0"), cuda(cudaImage)),
				want: "NVIDIA_REQUIRE_CUDA by brand=nvidia,driver>=580,driver<581"},
			{name: "an older CUDA, and a GPU that it does not serve", env: append(devices("3"), cuda(cudaImage)), kind: verdict.KindPrecondition,
				want: `refused: "cuda>=13.1" is not satisfied (nor is any of 3 alternatives): ` + version + ", CUDA 13.0, GPU 3 of brand geforcertx: " + off},
			{name: "every GPU must satisfy it", env: append(devices("0,3"), cuda(cudaImage)), want: "refused: GPU 3 of brand geforcertx" + off, kind: verdict.KindPrecondition},
			{name: "GPUs may satisfy it by different alternatives", env: append(devices("0,3"), "NVIDIA_REQUIRE_KIND=arch>=9 brand=geforcertx"),
				want: "NVIDIA_REQUIRE_KIND by arch>=9 brand=geforcertx"},
			{name: "several variables must all be satisfied", env: append(devices("0"), cuda("cuda>=12"), "NVIDIA_REQUIRE_ARCH=arch>=10"), kind: verdict.KindPrecondition,
				want: `refused: NVIDIA_REQUIRE_ARCH: "arch>=10" is not satisfied: ` + version + ", CUDA 13.0, GPU 0 of arch 9.0: use another GPU or another image" + off},
			{name: "without a GPU brands and architectures hold", host: silent, env: append(devices("none"), "NVIDIA_REQUIRE_KIND=arch>=99,brand=tesla"),
				want: "NVIDIA_REQUIRE_KIND by arch>=99,brand=tesla"},
			{name: "the driver's version decides alone", host: silent, env: append(devices("0"), "NVIDIA_REQUIRE_DRIVER=driver>=570,driver<9999"),
				want: "NVIDIA_REQUIRE_DRIVER by driver>=570,driver<9999"},
			{name: "a driver that is too old decides alone", host: silent, env: append(devices("0"), cuda("cuda>=12.8,driver>=9999")), kind: verdict.KindPrecondition,
				want: `refused: "cuda>=12.8,driver>=9999" is not satisfied: ` + version + ": update the driver" + off},
			{name: "a driver that is new enough decides alone", host: silent, env: append(devices("0"), cuda("cuda>=99 driver>=570")), want: "NVIDIA_REQUIRE_CUDA by driver>=570"},
			{name: "one that cannot be satisfied decides for all", host: silent, env: append(devices("0"), cuda("cuda>=12"), "NVIDIA_REQUIRE_DRIVER=driver<1"), kind: verdict.KindPrecondition,
				want: "refused: NVIDIA_REQUIRE_DRIVER" + off},
			{name: "checks that the container switches off", host: silent,
				env: append(devices("0"), cuda("cuda>=99 or something"), "CUDA_VERSION=latest", "NVIDIA_DISABLE_REQUIRE=true")},
		},
	}.run(t)
	if nvml.asked != 1 || silent.asked != 0 {
		t.Errorf("NVML was asked %d times, and %d times for what it is not needed for", nvml.asked, silent.asked)
	}
}

// Unknown properties never satisfy a requirement.
func TestUnknownRequirements(t *testing.T) {
	with := func(change func(*device.Facts)) *testHost {
		h := simulatedHost(t)
		h.change = change
		return h
	}
	silent := simulatedHost(t)
	silent.silent = true
	const off = " ... cannot be checked ... NVIDIA_DISABLE_REQUIRE=true ... disable-require"
	table{env: append(devices("0"), "NVIDIA_REQUIRE_CUDA=cuda>=12.8", "NVIDIA_REQUIRE_KIND=arch>=9,brand=nvidia"), rows: []row{
		{name: "NVML does not answer", host: silent, kind: verdict.KindPrecondition,
			want: `refused: NVIDIA_REQUIRE_CUDA="cuda>=12.8" cannot be checked ... NVML cannot be asked in this test` + off},
		{name: "NVML does not know the version of CUDA", host: with(func(f *device.Facts) { f.CUDA = "" }), kind: verdict.KindPrecondition,
			want: "refused: NVIDIA_REQUIRE_CUDA ... which version of CUDA" + off},
		{name: "NVML does not list the GPU", host: with(func(f *device.Facts) { f.GPUs = f.GPUs[1:] }), kind: verdict.KindPrecondition,
			want: "refused: NVIDIA_REQUIRE_KIND ... the arch of GPU 0" + off},
		{name: "NVML does not know the brand", host: with(func(f *device.Facts) { f.GPUs[0].Brand = "" }), kind: verdict.KindPrecondition,
			want: "refused: NVIDIA_REQUIRE_KIND ... the brand of GPU 0" + off},
		{name: "NVML is of another driver", host: with(func(f *device.Facts) { f.Driver = "1.2" }), kind: verdict.KindPrecondition,
			want: "refused: NVML belongs to driver 1.2" + off},
	}}.run(t)
}
