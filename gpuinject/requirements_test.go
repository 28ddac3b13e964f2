package gpuinject

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host/device"
)

// cudaImage is a requirement as images of CUDA have it: the condition proper, and
// brands with the driver branches that its compatibility package serves.
const cudaImage = "cuda>=13.1 brand=unknown,driver>=535,driver<536 brand=nvidia,driver>=580,driver<581 brand=geforcertx,driver>=570,driver<571"

func TestRequirements(t *testing.T) {
	const (
		gpu0 = "NVIDIA_VISIBLE_DEVICES=0"
		gpu3 = "NVIDIA_VISIBLE_DEVICES=3"
		both = "NVIDIA_VISIBLE_DEVICES=0,3"
		none = "NVIDIA_VISIBLE_DEVICES=none"
	)
	for _, tc := range []struct {
		name      string
		env       []string
		asked     bool   // NVML
		satisfied string // by which alternatives
		err       string
	}{
		{"an older CUDA than the image needs", []string{gpu0, "NVIDIA_REQUIRE_CUDA=cuda>=13.1"}, true, "", `NVIDIA_REQUIRE_CUDA: "cuda>=13.1" is not satisfied: this host has driver VERSION, CUDA 13.0: update the driver or use another image; or set NVIDIA_DISABLE_REQUIRE=true`},
		{"an older CUDA, but a driver that the image's compatibility package serves", []string{gpu0, "NVIDIA_REQUIRE_CUDA=" + cudaImage}, true, "brand=nvidia,driver>=580,driver<581", ""},
		{"an older CUDA, and a GPU that it does not serve", []string{gpu3, "NVIDIA_REQUIRE_CUDA=" + cudaImage}, true, "", `"cuda>=13.1" is not satisfied (nor is any of 3 alternatives): this host has driver VERSION, CUDA 13.0, GPU 3 of brand geforcertx: `},
		{"every GPU must satisfy it", []string{both, "NVIDIA_REQUIRE_CUDA=" + cudaImage}, true, "", `GPU 3 of brand geforcertx`},
		{"GPUs may satisfy it by different alternatives", []string{both, "NVIDIA_REQUIRE_KIND=arch>=9 brand=geforcertx"}, true, "arch>=9 brand=geforcertx", ""},
		{"the driver's version decides alone", []string{gpu0, "NVIDIA_REQUIRE_DRIVER=driver>=570,driver<9999"}, false, "driver>=570,driver<9999", ""},
		{"a driver that is too old decides alone", []string{gpu0, "NVIDIA_REQUIRE_CUDA=cuda>=12.8,driver>=9999"}, false, "", `"cuda>=12.8,driver>=9999" is not satisfied: this host has driver VERSION: update the driver`},
		{"a driver that is new enough decides alone", []string{gpu0, "NVIDIA_REQUIRE_CUDA=cuda>=99 driver>=570"}, false, "driver>=570", ""},
		{"several variables must all be satisfied", []string{gpu0, "NVIDIA_REQUIRE_CUDA=cuda>=12", "NVIDIA_REQUIRE_ARCH=arch>=10"}, true, "", `NVIDIA_REQUIRE_ARCH: "arch>=10" is not satisfied: this host has driver VERSION, CUDA 13.0, GPU 0 of arch 9.0: use another GPU or another image`},
		{"one that cannot be satisfied decides for all", []string{gpu0, "NVIDIA_REQUIRE_CUDA=cuda>=12", "NVIDIA_REQUIRE_DRIVER=driver<1"}, false, "", "NVIDIA_REQUIRE_DRIVER"},
		{"without a GPU the others are checked", []string{none, "NVIDIA_REQUIRE_CUDA=cuda>=13.1"}, true, "", `"cuda>=13.1" is not satisfied`},
		{"checks that the container switches off", []string{gpu0, "NVIDIA_REQUIRE_CUDA=cuda>=99 or something", "CUDA_VERSION=latest", "NVIDIA_DISABLE_REQUIRE=true"}, false, "", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			asked := 0
			plan, err := resolveWith(t, hostConfig(t), newSpec(tc.env...), factsFrom(func() (device.Facts, error) { asked++; return factsOf(simulated), nil }))
			if want := map[bool]int{true: 1}[tc.asked]; asked != want {
				t.Errorf("NVML was asked %d times, want %d", asked, want)
			}
			if tc.err != "" {
				kind := Precondition
				if strings.Contains(tc.err, "invalid") || strings.Contains(tc.err, "is not a version") {
					kind = Invalid
				}
				refused(t, err, kind, strings.ReplaceAll(tc.err, "driver VERSION", "driver "+simulated.Version), "NVIDIA_DISABLE_REQUIRE=true")
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			var satisfied []string
			for _, r := range plan.Requirements {
				if r.Variable == "" || !slices.Contains(tc.env, r.Variable+"="+r.Expression) && r.Variable != "CUDA_VERSION" {
					t.Errorf("plan has %+v", r)
				}
				satisfied = append(satisfied, r.SatisfiedBy...)
			}
			if got := strings.Join(satisfied, " "); got != tc.satisfied {
				t.Errorf("satisfied by %q, want %q", got, tc.satisfied)
			}
		})
	}
}

// What is not known is never taken as satisfied.
func TestUnknownRequirements(t *testing.T) {
	ask := []string{"NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_REQUIRE_CUDA=cuda>=12.8", "NVIDIA_REQUIRE_KIND=arch>=9,brand=nvidia"}
	for _, tc := range []struct {
		name string
		nvml func() (device.Facts, error)
		want []string
	}{
		{"NVML does not answer", func() (device.Facts, error) { return device.Facts{}, errors.New("no answer in 10 seconds") }, []string{`NVIDIA_REQUIRE_CUDA="cuda>=12.8" cannot be checked`, "no answer in 10 seconds"}},
		{"NVML does not know the version of CUDA", func() (device.Facts, error) { f := factsOf(simulated); f.CUDA = ""; return f, nil }, []string{"NVIDIA_REQUIRE_CUDA", "which version of CUDA"}},
		{"NVML does not list the GPU", func() (device.Facts, error) { f := factsOf(simulated); f.GPUs = f.GPUs[1:]; return f, nil }, []string{"NVIDIA_REQUIRE_KIND", "the arch of GPU 0"}},
		{"NVML does not know the brand", func() (device.Facts, error) { f := factsOf(simulated); f.GPUs[0].Brand = ""; return f, nil }, []string{"NVIDIA_REQUIRE_KIND", "the brand of GPU 0"}},
		{"NVML is of another driver", func() (device.Facts, error) { f := factsOf(simulated); f.Driver = "1.2"; return f, nil }, []string{"NVML is of driver 1.2"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := resolveWith(t, hostConfig(t), newSpec(ask...), factsFrom(tc.nvml))
			refused(t, err, Precondition, append(tc.want, "cannot be checked", "NVIDIA_DISABLE_REQUIRE=true", "disable-require")...)
		})
	}
}
