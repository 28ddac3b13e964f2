package nerdctl

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simhost"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testenv"
)

const runc = testenv.StockRuntime

// check compares what a container of a runtime sees with what belongs to these GPUs. The mask is
// the shim's.
func (h *host) check(t *testing.T, runtime, out string, gpus []int) {
	t.Helper()
	got, want := simhost.Parse(out), h.Expect(gpus)
	switch {
	case len(gpus) == 0:
		want = h.ExpectNothing()
	case runtime == runc:
		want.ProcGPUs = got.ProcGPUs
	}
	simhost.Compare(t, got, want)
}

// gpus are the CDI devices that nerdctl makes of --gpus.
func gpus(names ...string) (devices []string) {
	for _, name := range names {
		devices = append(devices, "nvidia.com/gpu="+name)
	}
	return devices
}

func TestEachWayToAskGivesExactlyItsGPUs(t *testing.T) {
	h := newHost(t, simhost.Options{})
	all := []string{"NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=compute,utility"}
	every := []int{0, 1, 2, 3}
	list := specs.Mount{Type: "bind", Source: "/dev/null", Destination: "/var/run/nvidia-container-devices/0", Options: []string{"rbind", "rprivate"}}
	for _, tc := range []struct {
		name       string
		flags      flags
		ours, runc []int
	}{
		{"nothing", flags{}, nil, nil},
		{"-e NVIDIA_VISIBLE_DEVICES=0,UUID", flags{env: []string{"NVIDIA_VISIBLE_DEVICES=0," + h.Driver.GPUs[3].UUID}}, []int{0, 3}, nil},
		{"the variable of the image", flags{image: all}, every, nil},
		{"-e over the variable of the image", flags{image: all, env: []string{"NVIDIA_VISIBLE_DEVICES=1"}}, []int{1}, nil},
		{"a device-list mount", flags{mounts: []specs.Mount{list}}, []int{0}, nil},
		{"--gpus all", flags{cdi: gpus("all")}, every, every},
		{"--gpus device=0, also as --device nvidia.com/gpu=0", flags{cdi: gpus("0")}, []int{0}, []int{0}},
		{"--gpus 2, also as count: 2 of compose", flags{cdi: gpus("0", "1")}, []int{0, 1}, []int{0, 1}},
		{"device_ids of compose: an index and a UUID", flags{cdi: gpus("1", h.Driver.GPUs[3].UUID)}, []int{1, 3}, []int{1, 3}},
		{"--gpus device=2 of an image that wants all", flags{cdi: gpus("2"), image: all}, []int{2}, []int{2}},
		{"--gpus device=2 beside -e NVIDIA_VISIBLE_DEVICES=all", flags{cdi: gpus("2"), env: all}, []int{2}, []int{2}},
	} {
		for runtime, want := range map[string][]int{testenv.DefaultRuntime: tc.ours, runc: tc.runc} {
			t.Run(tc.name+" "+runtime, func(t *testing.T) {
				tc.flags.runtime, tc.flags.args = runtime, h.ProbeArgs()
				h.check(t, runtime, h.StartTask(t, h.create(t, tc.flags)).Output, want)
			})
		}
	}
	t.Run("--device of a GPU's node, of an image that wants all", func(t *testing.T) {
		id := h.create(t, flags{nodes: []int{2}, image: all, args: h.ProbeArgs()})
		h.check(t, "", h.StartTask(t, id).Output, []int{2})
	})
	t.Run("a refusal is one line", func(t *testing.T) {
		id := h.create(t, flags{env: []string{"NVIDIA_VISIBLE_DEVICES=9"}, args: []string{"/bin/true"}})
		r := h.StartTask(t, id)
		if r.ExitCode == 0 || strings.Count(r.Error, "\n") != 1 {
			t.Errorf("exit status %d: %q", r.ExitCode, r.Error)
		}
		simhost.Want(t, r.Error, `NVIDIA_VISIBLE_DEVICES="9"`, `unknown GPU "9"`)
	})
}

// The hooks of nerdctl, which set up its networks, run as under runc.
func TestAContainerKeepsItsGPU(t *testing.T) {
	testenv.EachCgroup(t, func(t *testing.T, version int) {
		h := newHost(t, simhost.Options{Env: testenv.Options{Cgroup: version}})
		for _, f := range []flags{{cdi: gpus("2")}, {env: []string{"NVIDIA_VISIBLE_DEVICES=2"}}} {
			f.args = []string{"/bin/sleep", "600"}
			id := h.create(t, f)
			start := func() { h.Ctr(t, "tasks", "start", "--detach", "--null-io", id) }
			for _, step := range []struct {
				name string
				do   func()
			}{
				{"run", start},
				{"pause and unpause", func() { h.Ctr(t, "tasks", "pause", id); h.Ctr(t, "tasks", "resume", id) }},
				{"restart", func() { h.Ctr(t, "tasks", "rm", "--force", id); start() }},
				{"containerd again", func() { h.Restart(t) }},
			} {
				step.do()
				t.Run(step.name, func(t *testing.T) { h.check(t, "", h.Exec(t, id, h.ProbeArgs()...).Output, []int{2}) })
			}
			h.Ctr(t, "tasks", "rm", "--force", id)
			ran, err := os.ReadFile(h.ran)
			call := "--namespace=" + h.ID + " internal oci-hook "
			if want := strings.Repeat(call+"createRuntime\n"+call+"postStop\n", 2); err != nil || string(ran) != want {
				t.Errorf("nerdctl's hook was called with\n%s, %v, want\n%s", ran, err, want)
			}
			if err := os.Remove(h.ran); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// `nerdctl run --restart always` leaves restarts to containerd.
func TestRestartAlwaysGivesTheGPUEachTime(t *testing.T) {
	h := newHost(t, simhost.Options{Env: testenv.Options{Config: "[plugins.\"io.containerd.monitor.container.v1.restart\"]\n  interval = \"500ms\"\n"}})
	log := filepath.Join(h.Dir, "log")
	id := h.create(t, flags{cdi: gpus("3"), args: []string{"nvidia-smi", "-L"}, labels: map[string]string{
		"containerd.io/restart.status": "running", "containerd.io/restart.policy": "always",
		"containerd.io/restart.explicitly-stopped": "false", "containerd.io/restart.loguri": "file://" + log,
	}})
	testenv.Await(t, "the container runs three times", func() bool {
		out, _ := os.ReadFile(log)
		return strings.Count(string(out), h.Driver.GPUs[3].UUID) >= 3
	})
	// A restart that is under way may come between the two steps.
	testenv.Await(t, "the container is removed", func() bool {
		_, _, _ = h.CtrErr("tasks", "rm", "--force", id)
		_, _, err := h.CtrErr("containers", "rm", id)
		return err == nil
	})
}
