package ctl

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simhost"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testenv"
)

// The flags alone, under containerd's own runc shim: the same GPU, and no other.
func TestRunArgsGiveTheGPUWithoutTheShim(t *testing.T) {
	testenv.EachCgroup(t, func(t *testing.T, version int) {
		h := simhost.New(t, simhost.Options{Env: testenv.Options{Cgroup: version}})
		out := h.Ctl(t, "--json", "run-args", "--for", "ctr", "--devices", "1")
		var r struct{ Args []string }
		if err := json.Unmarshal([]byte(out), &r); err != nil || len(r.Args) == 0 {
			t.Fatalf("%v: %s", err, out)
		}
		var refused, minors []string
		for _, g := range h.Driver.GPUs {
			number := fmt.Sprintf("%d:%d", h.Driver.Majors.GPU, g.Minor)
			minors = append(minors, number)
			if g.Index != 1 {
				refused = append(refused, number+" EPERM")
			}
		}
		got := h.MustRun(t, testenv.RunOptions{
			Runtime: testenv.StockRuntime, Extra: r.Args,
			Args: []string{"/bin/sh", "-c", "/test/dlopen libcuda.so.1; /test/cucount; nvidia-smi -L; /test/mkdev " + strings.Join(minors, " ")},
		})
		for _, want := range append(refused, "libcuda.so.1 OK /usr/local/nvidia/lib64/libcuda.so.1", "count 1\n", "GPU 0: NVIDIA H200 (UUID: "+h.Driver.GPUs[1].UUID+")") {
			if !strings.Contains(got, want) {
				t.Errorf("no %q in\n%s", want, got)
			}
		}
		if strings.Count(got, "EPERM") != len(refused) {
			t.Errorf("not exactly the other GPUs are refused:\n%s", got)
		}
		for _, g := range h.Driver.GPUs {
			if g.Index != 1 && strings.Contains(got, g.UUID) {
				t.Errorf("GPU %d is seen:\n%s", g.Index, got)
			}
		}
	})
}
