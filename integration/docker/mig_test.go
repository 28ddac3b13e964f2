package docker

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simdriver/sim"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simhost"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testenv"
)

// partition changes the MIG layout and the CDI specification, and waits until dockerd has read it.
func (e *engine) partition(t *testing.T, device string, layout ...sim.MIGDevice) {
	t.Helper()
	if err := e.Driver.Reconfigure(t.Context(), layout); err != nil {
		t.Fatal(err)
	}
	e.Ctl(t, "cdi", "--output", filepath.Join(e.specs, "nvidia.yaml"))
	testenv.Await(t, "dockerd knows "+device, func() bool {
		return strings.Contains(e.docker(t, "info", "--format", "{{json .DiscoveredDevices}}"), `"`+device+`"`)
	})
}

// MIG devices are named by UUID and by index, as GPUs are.
func TestMIGDevices(t *testing.T) {
	// Another layout means another libnvidia-ml, and so another view.
	unchanged(t, buildkit, shared.Driver.StateDir+"/view/")
	t.Cleanup(func() {
		shared.partition(t, "nvidia.com/gpu=1")
		check(t, shared.probe(t, visible("1"), shared.image()), 1)
	})
	shared.partition(t, "nvidia.com/gpu=1:1", sim.MIGDevice{GPU: 1, GI: 9}, sim.MIGDevice{GPU: 1, GI: 5})
	mig := shared.Driver.MIG
	compare := func(t *testing.T, runtime, out string, gpus, mig []int) {
		t.Helper()
		got, want := simhost.Parse(out), shared.ExpectMIG(gpus, mig)
		if runtime == "runc" {
			want.ProcGPUs = got.ProcGPUs // the mask is the shim's
		}
		simhost.Compare(t, got, want)
	}
	for _, tc := range []struct {
		name      string
		flags     []string
		gpus, mig []int
	}{
		{"--gpus by UUID", []string{"--gpus", `"device=` + mig[1].UUID + `"`}, nil, []int{1}},
		{"--gpus by index", []string{"--gpus", "device=1:0"}, nil, []int{0}},
		{"--gpus of both beside a GPU", []string{"--gpus", `"device=2,1:0,` + mig[1].UUID + `"`}, []int{2}, []int{0, 1}},
		{"--gpus all", []string{"--gpus", "all"}, []int{0, 2, 3}, []int{0, 1}},
		{"--device by UUID", []string{"--device", "nvidia.com/gpu=" + mig[0].UUID}, nil, []int{0}},
		{"--device by index, of an image that wants all", []string{"--device", "nvidia.com/gpu=1:1", "--env", "NVIDIA_VISIBLE_DEVICES=all"}, nil, []int{1}},
	} {
		for _, runtime := range runtimes {
			t.Run(tc.name+" "+runtime, func(t *testing.T) {
				compare(t, runtime, shared.probe(t, append([]string{"--runtime", runtime}, tc.flags...), shared.image()), tc.gpus, tc.mig)
			})
		}
	}
	for name, value := range map[string]string{"UUID": mig[1].UUID, "index": "1:1"} {
		t.Run("the variable by "+name, func(t *testing.T) {
			compare(t, "nvidia", shared.probe(t, visible(value), shared.image()), nil, []int{1})
		})
	}
	t.Run("a partitioned GPU as a whole", func(t *testing.T) {
		r := shared.try(t, nil, append(shared.run("--rm", "--runtime", "nvidia", "--gpus", "device=1"), shared.image(), "/bin/true")...)
		if r.ExitCode == 0 {
			t.Error("the container started")
		}
		simhost.Want(t, r.Error, "partitioned by MIG", "1:0 ("+mig[0].UUID)
	})
	t.Run("compose", func(t *testing.T) {
		const text = "services:\n  mig:\n    image: %s\n    runtime: nvidia\n    network_mode: none\n    pull_policy: never\n" +
			"    deploy: {resources: {reservations: {devices: [{driver: nvidia, device_ids: ['1:0', %s], capabilities: [gpu]}]}}}\n"
		file := simhost.WriteFile(t, filepath.Join(t.TempDir(), "compose.yaml"), fmt.Sprintf(text, shared.image(), mig[1].UUID))
		out := shared.docker(t, append([]string{"compose", "--project-name", shared.ID, "--file", file, "run", "--rm", "--no-TTY", "mig"}, shared.ProbeArgs()...)...)
		compare(t, "nvidia", out, nil, []int{0, 1})
	})
	t.Run("build", func(t *testing.T) {
		const device = "nvidia.com/gpu=1:0"
		out := shared.build(t, nil, "RUN --device="+device+" "+seen, "--allow", "device="+device)
		if !strings.Contains(out, mig[0].UUID) || strings.Count(out, "MIG-") != 1 {
			t.Errorf("the build sees %s", out)
		}
	})
}
