package ctl

import (
	"encoding/json"
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
		args := h.ProbeArgs()
		args[2] += "\n/test/dlopen libcuda.so.1"
		out = h.MustRun(t, testenv.RunOptions{Runtime: testenv.StockRuntime, Extra: r.Args, Args: args})
		got, want := simhost.Parse(out), h.Expect([]int{1})
		want.ProcGPUs = got.ProcGPUs // the mask is the shim's
		simhost.Compare(t, got, want)
		simhost.Want(t, out, "libcuda.so.1 OK /usr/local/nvidia/lib64/libcuda.so.1")
	})
}
