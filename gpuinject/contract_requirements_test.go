package gpuinject

import "github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"

func requirementContract() []contractSection {
	req := func(name, expression string) []string { return []string{"NVIDIA_REQUIRE_" + name + "=" + expression} }
	const (
		ignored = "ignored"
		fails   = "fails"
	)
	return []contractSection{{
		title: "NVIDIA_REQUIRE_*", env: devices("0"), show: showRequirements,
		cases: []contractCase{
			{name: "a CUDA that the driver has", env: req("CUDA", "cuda>=12.8"), here: "starts", jit: ignored, legacy: same},
			{name: "a CUDA that it does not have", env: req("CUDA", "cuda>=13.1"), here: `refused: "cuda>=13.1" is not satisfied`, jit: ignored, legacy: fails},
			{name: "alternatives", env: req("CUDA", "cuda>=13.1 brand=nvidia,driver>=580,driver<581"), here: "starts", jit: ignored, legacy: same},
			{name: "conditions that must all hold", env: req("CUDA", "cuda>=12,driver>=590"), here: "refused: is not satisfied", jit: ignored, legacy: fails},
			{name: "empty alternatives and conditions", env: req("CUDA", "  ,cuda>=12,, "), here: "starts", jit: ignored, legacy: same},
			{name: "a driver", env: req("DRIVER", "driver>=570"), here: "starts", jit: ignored, legacy: same},
			{name: "a driver, by number and component", env: req("DRIVER", "driver>580.65.06"), here: "starts", jit: ignored, legacy: same},
			{name: "trailing zeros", env: req("CUDA", "cuda=13"), here: "starts", jit: ignored, legacy: same},
			{name: "an architecture", env: req("ARCH", "arch>=10.0"), here: "refused: GPU 0 of arch 9.0", jit: ignored, legacy: fails},
			{name: "a brand, in any case", env: req("KIND", "brand=NVIDIA"), here: "starts", jit: ignored, legacy: same},
			{name: "a property in capitals", env: req("CUDA", "CUDA>=12"), here: "starts", jit: ignored, legacy: same},
			{name: "a brand by another operator", env: req("KIND", "brand>=nvidia"), here: "refused: invalid expression", jit: ignored, legacy: fails},
			{name: "an architecture that not every GPU has", env: append(devices("0,3"), req("ARCH", "arch>=9.0")...), here: "refused: GPU 3 of arch 8.9", jit: ignored, legacy: fails},
			{name: "an architecture without a GPU", env: append(devices("none"), req("ARCH", "arch>=99")...), here: "starts", jit: ignored, legacy: same},
			{name: "a CUDA without a GPU", env: append(devices("none"), req("CUDA", "cuda>=99")...), here: "refused: is not satisfied", jit: ignored, legacy: fails},
			{name: "several variables", env: append(req("CUDA", "cuda>=12"), req("DRIVER", "driver>=999")...), here: `refused: NVIDIA_REQUIRE_DRIVER: "driver>=999" is not satisfied`, jit: ignored, legacy: fails},
			{name: "an unknown property", env: req("CUDA", "memory>=80"), here: "refused: invalid expression", jit: ignored, legacy: fails},
			{name: "an operator of another language", env: req("CUDA", "cuda==12"), here: "refused: invalid expression", jit: ignored, legacy: fails},
			{name: "a version that is none", env: req("CUDA", "cuda>=twelve"), here: "refused: invalid expression", jit: ignored, legacy: fails},
			{name: "an image older than CUDA 9", env: []string{"CUDA_VERSION=8.0.61"}, here: "starts", jit: ignored, legacy: same},
			{name: "such an image on too old a driver", env: []string{"CUDA_VERSION=99.1.5"}, here: `refused: CUDA_VERSION: "cuda>=99.1" is not satisfied`, jit: ignored, legacy: fails},
			{name: "such an image whose version is none", env: []string{"CUDA_VERSION=latest"}, here: "refused: is not a version of CUDA", jit: ignored, legacy: fails},
			{name: "such an image with a version of four parts", env: []string{"CUDA_VERSION=9.0.116.50"}, here: "starts", jit: ignored, legacy: fails},
			{name: "such an image with a number that is large", env: []string{"CUDA_VERSION=9.4294967296"}, here: "starts", jit: ignored, legacy: fails},
			{name: "such an image with too many dots", env: []string{"CUDA_VERSION=9..0"}, here: "starts", jit: ignored, legacy: fails},
			{name: "Jetpack's variable", env: req("JETPACK", "csv-mounts=all"), here: "starts, nothing is required", jit: "on Tegra: every csv file", legacy: "not a requirement"},
			{name: "switched off by the container", env: append(req("CUDA", "cuda>=99"), "NVIDIA_DISABLE_REQUIRE=true"), here: "starts, nothing is checked", jit: ignored, legacy: same},
			{name: "switched off for older images", env: []string{"CUDA_VERSION=99.1.5", "NVIDIA_DISABLE_REQUIRE=1"}, here: "starts, nothing is checked", jit: ignored, legacy: same},
			{name: "switched off by a word that is not true", env: append(req("DRIVER", "driver>=999"), "NVIDIA_DISABLE_REQUIRE=yes"), here: "refused: is not satisfied", jit: ignored, legacy: fails},
			{name: "switched off by the operator", env: req("CUDA", "cuda>=99"), with: "`policy.disable-require = true`",
				config: func(c *config.Config) { c.Policy.DisableRequire = true }, here: "starts, nothing is checked", jit: ignored, legacy: "same, by `disable-require`"},
		},
	}}
}
