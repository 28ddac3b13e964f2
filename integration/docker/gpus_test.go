package docker

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simhost"
)

// With the specification of `nvidia-shimctl cdi`, --gpus and --device give the same GPUs under the
// shim and under runc, also to an image whose environment wants all.
func TestGPUsByCDI(t *testing.T) {
	unchanged(t)
	second, third := shared.Driver.GPUs[2].UUID, shared.Driver.GPUs[3].UUID
	for _, tc := range []struct {
		name  string
		flags []string
		want  []int
	}{
		{"--gpus all", []string{"--gpus", "all"}, []int{0, 1, 2, 3}},
		{"--gpus 2", []string{"--gpus", "2"}, []int{0, 1}},
		{"--gpus by index and UUID", []string{"--gpus", `"device=0,` + second + `"`}, []int{0, 2}},
		{"--device", []string{"--device", "nvidia.com/gpu=0"}, []int{0}},
		{"--device twice", []string{"--device", "nvidia.com/gpu=1", "--device", "nvidia.com/gpu=" + third}, []int{1, 3}},
		{"--device with an image that wants all", []string{"--device", "nvidia.com/gpu=1", "--env", "NVIDIA_VISIBLE_DEVICES=all"}, []int{1}},
	} {
		for _, runtime := range []string{"nvidia", "runc"} {
			t.Run(tc.name+" "+runtime, func(t *testing.T) {
				got := simhost.Parse(shared.probe(t, append([]string{"--runtime", runtime}, tc.flags...), shared.image()))
				want := shared.Expect(tc.want)
				if runtime == "runc" {
					want.ProcGPUs = got.ProcGPUs // the mask is the shim's
				}
				simhost.Compare(t, got, want)
			})
		}
	}
	t.Run("an unknown device", func(t *testing.T) {
		r := shared.try(t, nil, append(shared.run("--rm", "--runtime", "nvidia", "--device", "nvidia.com/gpu=9"), shared.image(), "/bin/true")...)
		if r.ExitCode == 0 {
			t.Error("the container started")
		}
		simhost.Want(t, r.Error, "nvidia.com/gpu=9")
	})
}

// BuildKit runs runc, so that a build gets GPUs by CDI alone.
func TestABuildGetsADevice(t *testing.T) {
	unchanged(t, buildkit)
	const device = "nvidia.com/gpu=1"
	out := shared.build(t, nil, "RUN --device="+device+" "+seen, "--allow", "device="+device)
	if !strings.Contains(out, shared.Driver.GPUs[1].UUID) || strings.Count(out, "GPU-") != 1 {
		t.Errorf("the build sees %s", out)
	}
}

// services are the ways of compose to ask, by the name of the service.
var services = map[string]struct {
	text string
	want []int
}{
	"variable": {"environment: {NVIDIA_VISIBLE_DEVICES: '1'}", []int{1}},
	"gpus":     {"gpus: all", []int{0, 1, 2, 3}},
	"count":    {"deploy: {resources: {reservations: {devices: [{driver: nvidia, count: 2, capabilities: [gpu]}]}}}", []int{0, 1}},
	"ids":      {"deploy: {resources: {reservations: {devices: [{driver: nvidia, device_ids: ['3'], capabilities: [gpu]}]}}}", []int{3}},
	"cdi":      {"deploy: {resources: {reservations: {devices: [{driver: cdi, device_ids: [nvidia.com/gpu=2], capabilities: [gpu]}]}}}", []int{2}},
}

func TestComposeGivesItsServicesTheirGPUs(t *testing.T) {
	unchanged(t)
	var text strings.Builder
	text.WriteString("services:\n")
	for name, s := range services {
		fmt.Fprintf(&text, "  %s:\n    image: %s\n    runtime: nvidia\n    network_mode: none\n    pull_policy: never\n    command: [sleep, '600']\n    stop_grace_period: 0s\n    %s\n",
			name, shared.image(), s.text)
	}
	file := simhost.WriteFile(t, filepath.Join(t.TempDir(), "compose.yaml"), text.String())
	compose := func(args ...string) string {
		t.Helper()
		return shared.docker(t, append([]string{"compose", "--project-name", shared.ID, "--file", file}, args...)...)
	}
	t.Cleanup(func() { compose("down") })
	compose("up", "--detach")
	see := func(t *testing.T) {
		for name, s := range services {
			t.Run(name, func(t *testing.T) {
				check(t, compose(append([]string{"exec", "--no-TTY", name}, shared.ProbeArgs()...)...), s.want...)
			})
		}
	}
	t.Run("started", see)
	compose("restart")
	t.Run("restarted", see)
}
