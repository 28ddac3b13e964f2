package docker

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simhost"
)

var runtimes = []string{"nvidia", "runc"}

// checkUnder is check for a container of a runtime. The mask is the shim's.
func checkUnder(t *testing.T, runtime, out string, gpus []int) {
	t.Helper()
	if runtime == "runc" && len(gpus) > 0 {
		out, _, _ = strings.Cut(out, "== proc\n")
		out += "== proc\n" + strings.Join(shared.Expect(gpus).ProcGPUs, "\n")
	}
	check(t, out, gpus...)
}

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
		for _, runtime := range runtimes {
			t.Run(tc.name+" "+runtime, func(t *testing.T) {
				checkUnder(t, runtime, shared.probe(t, append([]string{"--runtime", runtime}, tc.flags...), shared.image()), tc.want)
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
	t.Run("a CDI file whose hook is the link, without a toolkit", func(t *testing.T) {
		if toolkit, err := exec.LookPath("/usr/bin/nvidia-cdi-hook"); err == nil {
			t.Skipf("NOT TESTED: this host has %s", toolkit)
		}
		file := filepath.Join(shared.specs, "hook.json")
		t.Cleanup(func() { os.Remove(file) })
		simhost.WriteFile(t, file, fmt.Sprintf(`{"cdiVersion": "0.5.0", "kind": "example.com/hook", "devices": [{"name": "0", "containerEdits":
			{"hooks": [{"hookName": "createContainer", "path": %q, "args": ["nvidia-cdi-hook", "update-ldcache"]}]}}]}`, shared.hook()))
		r := shared.try(t, nil, append(shared.run("--rm", "--runtime", "runc", "--device", "example.com/hook=0"), shared.image(), "true")...)
		if r.ExitCode == 0 {
			t.Error("the container started")
		}
		simhost.Want(t, r.Error, "nvidia-cdi-hook: NVIDIA's toolkit is not installed")
	})
}

// Without a CDI specification a program named nvidia-container-runtime-hook in dockerd's PATH is
// enough, and keeps the capabilities that the flag names.
func TestGPUsWithoutCDI(t *testing.T) {
	unchanged(t, shared.Driver.StateDir+"/view/") // utility alone has its own view
	t.Cleanup(func() { shared.restart(t) })
	simhost.Away(t, shared.hook())
	simhost.Away(t, filepath.Join(shared.specs, "nvidia.yaml"))
	shared.restart(t)
	gpus := func(value string) []string { return []string{"--runtime", "nvidia", "--gpus", value} }
	for value, want := range map[string][]int{"all": {0, 1, 2, 3}, "2": {0, 1}, `"device=0,` + shared.Driver.GPUs[2].UUID + `"`: {0, 2}} {
		t.Run(value, func(t *testing.T) { check(t, shared.probe(t, gpus(value), shared.image()), want...) })
	}
	t.Run("utility", func(t *testing.T) {
		got := simhost.Parse(shared.probe(t, gpus("all,capabilities=utility"), shared.image()))
		if len(got.SMI) != 4 || len(got.CUDA) != 0 || slices.Contains(got.Dev, "nvidia-uvm") {
			t.Errorf("nvidia-smi %q, libcuda %q, nodes %q", got.SMI, got.CUDA, got.Dev)
		}
	})
	t.Run("an unknown GPU", func(t *testing.T) {
		r := shared.try(t, nil, append(append(shared.run("--rm"), gpus("device=9")...), shared.image(), "true")...)
		if r.ExitCode == 0 {
			t.Error("the container started")
		}
		simhost.Want(t, r.Error, `unknown GPU "9"`)
	})
}

// BuildKit runs runc, so that a build gets GPUs by CDI alone. The classic builder uses the default
// runtime.
func TestABuildGetsADevice(t *testing.T) {
	unchanged(t, buildkit)
	const device = "nvidia.com/gpu=1"
	out := shared.build(t, nil, "RUN --device="+device+" "+seen, "--allow", "device="+device)
	if !strings.Contains(out, shared.Driver.GPUs[1].UUID) || strings.Count(out, "GPU-") != 1 {
		t.Errorf("the build sees %s", out)
	}
	if out := shared.build(t, []string{"DOCKER_BUILDKIT=0"}, "RUN "+seen); strings.Contains(out, "GPU-") {
		t.Errorf("a build by runc sees %s", out)
	}
}

// services are the ways to ask in compose, by the name of the service.
var services = map[string]struct {
	text string
	want []int
}{
	"variable": {"environment: {NVIDIA_VISIBLE_DEVICES: '1'}", []int{1}},
	"gpus":     {"gpus: all", []int{0, 1, 2, 3}},
	"count":    {"deploy: {resources: {reservations: {devices: [{driver: nvidia, count: 2, capabilities: [gpu]}]}}}", []int{0, 1}},
	"ids":      {"deploy: {resources: {reservations: {devices: [{driver: nvidia, device_ids: ['3'], capabilities: [gpu]}]}}}", []int{3}},
	"hook":     {"deploy: {resources: {reservations: {devices: [{driver: nvidia.runtime-hook, count: 2, capabilities: [gpu, compute, utility]}]}}}", []int{0, 1}},
	"cdi":      {"deploy: {resources: {reservations: {devices: [{driver: cdi, device_ids: [nvidia.com/gpu=2], capabilities: [gpu]}]}}}", []int{2}},
}

func TestComposeGivesItsServicesTheirGPUs(t *testing.T) {
	unchanged(t)
	var text strings.Builder
	text.WriteString("services:\n")
	want := map[string][]int{}
	for _, runtime := range runtimes {
		for name, s := range services {
			if runtime == "runc" {
				switch name {
				case "hook":
					continue // runc would run it
				case "variable":
					s.want = nil
				}
			}
			name += "-" + runtime
			want[name] = s.want
			fmt.Fprintf(&text, "  %s:\n    image: %s\n    runtime: %s\n    network_mode: none\n    pull_policy: never\n    command: [sleep, '600']\n    stop_grace_period: 0s\n    %s\n",
				name, shared.image(), runtime, s.text)
		}
	}
	file := simhost.WriteFile(t, filepath.Join(t.TempDir(), "compose.yaml"), text.String())
	compose := func(args ...string) string {
		t.Helper()
		return shared.docker(t, append([]string{"compose", "--project-name", shared.ID, "--file", file}, args...)...)
	}
	t.Cleanup(func() { compose("down") })
	compose("up", "--detach")
	see := func(t *testing.T) {
		for name, gpus := range want {
			t.Run(name, func(t *testing.T) {
				_, runtime, _ := strings.Cut(name, "-")
				checkUnder(t, runtime, compose(append([]string{"exec", "--no-TTY", name}, shared.ProbeArgs()...)...), gpus)
			})
		}
	}
	t.Run("started", see)
	compose("restart")
	t.Run("restarted", see)
}
