//go:build gpu

package docker

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/gpu"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simdriver/sim"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simhost"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testenv"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testenv/mounts"
)

// With the tag gpu dockerd has the host's real GPUs and an image of the host's own programs: run
// -test.run '^TestOnRealGPUs'. The other tests need the simulated driver.
func init() { newHost = realHost }

// realHost is a host with the real driver. The state directory is the test's own.
func realHost(t testing.TB) *simhost.Host {
	t.Helper()
	if _, err := os.Stat("/proc/driver/nvidia/version"); err != nil {
		t.Fatalf("this host has no NVIDIA driver: %v", err)
	}
	before := testenv.Snapshot(t)
	t.Cleanup(func() { before.AssertUnchanged(t) })
	dir := mounts.TempDir(t)
	config := simhost.WriteFile(t, filepath.Join(dir, "config.toml"), fmt.Sprintf("[host]\nstate-dir = %q\n", filepath.Join(dir, "state")))
	h := &simhost.Host{Devices: simhost.Devices{Driver: &sim.Driver{ConfigPath: config}}}
	h.Env = testenv.Start(t, testenv.Options{ShimConfig: config, ShimDir: testenv.ShimDir()})
	programs := os.Getenv("NVIDIA_SHIM_GPU_PROGRAMS")
	if programs == "" {
		programs = dir
		if err := gpu.Compile(programs); err != nil {
			t.Fatal(err)
		}
	}
	h.Image = "test/gpu:latest"
	image, err := gpu.ProgramsImage(h.Image, programs)
	tar := filepath.Join(dir, "image.tar")
	if err == nil {
		err = image.Write(tar)
	}
	if err != nil {
		t.Fatal(err)
	}
	h.Import(t, tar)
	return h
}

// uuids are those of the host's GPUs, by index.
func uuids(t *testing.T) []string {
	t.Helper()
	var all []string
	for _, g := range testenv.HostGPUs(t) {
		all = append(all, g.UUID)
	}
	return all
}

// compute is a command that lists the GPUs and runs a CUDA kernel on each.
const compute = "nvidia-smi -L; vectoradd"

// computed compares what compute printed with the GPUs that a container was granted.
func computed(t *testing.T, out string, want ...string) {
	t.Helper()
	for _, uuid := range want {
		if strings.Count(out, uuid) != 2 {
			t.Errorf("GPU %s is not there twice, for nvidia-smi and for CUDA", uuid)
		}
	}
	if strings.Count(out, "GPU-") != 2*len(want) || strings.Count(out, " ok\n") != len(want) {
		t.Errorf("want %d GPUs with the right sums", len(want))
	}
	if t.Failed() {
		t.Log(out)
	}
}

func TestOnRealGPUsEachWayToAskComputes(t *testing.T) {
	all := uuids(t)
	last := all[len(all)-1]
	for _, tc := range []struct {
		name     string
		flags    []string
		want     []string
		runtimes []string
	}{
		{"an index", visible("0"), all[:1], nil},
		{"a UUID", visible(last), []string{last}, nil},
		{"all", visible("all"), all, nil},
		{"--gpus all", []string{"--gpus", "all"}, all, runtimes},
		{"--gpus 1", []string{"--gpus", "1"}, all[:1], runtimes},
		{"--gpus by UUID", []string{"--gpus", "device=" + last}, []string{last}, runtimes},
		{"--device", []string{"--device", "nvidia.com/gpu=0"}, all[:1], runtimes},
	} {
		if tc.runtimes == nil {
			tc.runtimes = runtimes[:1]
		}
		for _, runtime := range tc.runtimes {
			t.Run(tc.name+" "+runtime, func(t *testing.T) {
				args := append(shared.run("--rm", "--runtime", runtime), tc.flags...)
				computed(t, shared.docker(t, append(args, shared.image(), "sh", "-c", compute)...), tc.want...)
			})
		}
	}
	t.Run("an image that wants all, without the runtime", func(t *testing.T) {
		out := shared.docker(t, append(shared.run("--rm", "--env", "NVIDIA_VISIBLE_DEVICES=all"), shared.image(), "sh", "-c", "ls /dev")...)
		if slices.ContainsFunc(strings.Fields(out), func(name string) bool { return strings.HasPrefix(name, "nvidia") }) {
			t.Errorf("/dev has %s", out)
		}
	})
}

func TestOnRealGPUsABuildComputes(t *testing.T) {
	const device = "nvidia.com/gpu=0"
	out := shared.build(t, nil, "RUN --device="+device+" { "+compute+"; } >/seen 2>&1", "--allow", "device="+device)
	computed(t, out, uuids(t)[0])
}

func TestOnRealGPUsAComposeServiceComputes(t *testing.T) {
	file := simhost.WriteFile(t, filepath.Join(t.TempDir(), "compose.yaml"), fmt.Sprintf(
		"services:\n  gpu:\n    image: %s\n    runtime: nvidia\n    network_mode: none\n    pull_policy: never\n    command: [sleep, '600']\n    stop_grace_period: 0s\n    gpus: all\n", shared.image()))
	compose := func(args ...string) string {
		t.Helper()
		return shared.docker(t, append([]string{"compose", "--project-name", shared.ID, "--file", file}, args...)...)
	}
	t.Cleanup(func() { compose("down") })
	compose("up", "--detach")
	computed(t, compose("exec", "--no-TTY", "gpu", "sh", "-c", compute), uuids(t)...)
	compose("restart")
	computed(t, compose("exec", "--no-TTY", "gpu", "sh", "-c", compute), uuids(t)...)
}

// The container keeps its GPU when dockerd and containerd start again, after a pause, and when it
// is started a second time.
func TestOnRealGPUsAContainerKeepsComputing(t *testing.T) {
	want := uuids(t)[0]
	id := shared.background(t, visible("0")...)
	for _, step := range []struct {
		name string
		do   func()
	}{
		{"started", func() {}},
		{"paused", func() { shared.docker(t, "pause", id); shared.docker(t, "unpause", id) }},
		{"dockerd again", func() { shared.restart(t) }},
		{"restarted", func() { shared.docker(t, "restart", "--time", "0", id) }},
	} {
		t.Run(step.name, func(t *testing.T) {
			step.do()
			computed(t, shared.docker(t, "exec", id, "sh", "-c", compute), want)
		})
	}
}
