package shim

import (
	"maps"
	"strings"
	"testing"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/place"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/probe"
)

func TestPlacement(t *testing.T) {
	gpus := []gpuinject.PlanGPU{{Index: 0, UUID: "GPU-a"}, {Index: 2, UUID: "GPU-b"}, {Index: 3, UUID: "GPU-c"}}
	onA, onAB := probe.Memory{7: {"GPU-a": 1}}, probe.Memory{7: {"GPU-a": 1}, 8: {"GPU-b": 1}}
	for _, tc := range []struct {
		text string
		held probe.Memory
		want string // "abc" → where a, b and c go; else words of the error
	}{
		{"2", onA, "bac"},
		{"GPU-c", onA, "cba"},
		{"gpu-C", onA, "cba"},
		{"0", onA, "abc"},
		{"0=3", onA, "cba"},
		{"0=2,2=3", onAB, "bca"},
		{"0=2,2=0", onAB, "bac"},
		{"0=3,2=2", onAB, "cba"},
		{"2=3", onA, "acb"},
		{"3", onAB, "its memory is on 2 GPUs: name each as OLD=NEW"},
		{"3", nil, "its memory is on 0 GPUs: name each as OLD=NEW"},
		{"0=2", onAB, "bac"},
		{"1", onA, `"1" is not one of its GPUs: 0 (GPU-a), 2 (GPU-b), 3 (GPU-c)`},
		{"1=2", onA, `"1" is not one of its GPUs`},
		{"", onA, `"" is not one of its GPUs`},
		{"0=2,0=3", onA, "a GPU is named twice"},
		{"0=2,3=2", onA, "a GPU is named twice"},
	} {
		to, err := placement(tc.text, gpus, tc.held)
		if err != nil {
			if !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%q: %v, want %q", tc.text, err, tc.want)
			}
			continue
		}
		want := map[string]string{}
		for i, letter := range tc.want {
			want["GPU-"+string("abc"[i%3])] = "GPU-" + string(letter)
		}
		if !maps.Equal(to, want) {
			t.Errorf("%q: %v, want %v", tc.text, to, want)
		}
	}
}

func TestWhichGPUsAreExchanged(t *testing.T) {
	masked := place.Proc{Masked: true}
	gpus := []gpuinject.PlanGPU{{UUID: "GPU-a"}}
	for name, tc := range map[string]struct {
		plan gpuinject.Plan
		want int
	}{
		"whole GPUs":   {gpuinject.Plan{GPUs: gpus, Proc: masked}, 1},
		"privileged":   {gpuinject.Plan{GPUs: gpus}, 0},
		"a MIG device": {gpuinject.Plan{GPUs: gpus, MIG: []gpuinject.PlanMIG{{UUID: "MIG-a"}}, Proc: masked}, 0},
	} {
		if got := exchangeable(tc.plan); len(got) != tc.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}
