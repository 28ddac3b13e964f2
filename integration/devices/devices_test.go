package devices

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simdriver/sim"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simhost"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testenv"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testenv/api"
)

func TestMain(m *testing.M) { simhost.Main(m) }

// Exactly the node of the GPU that was asked for opens, whether the image brings a
// node, the container makes one, or NVML and CUDA look for it. On hosts where
// a GPU's index is not its minor number, too.
func TestT33AContainerOpensOnlyTheGPUsThatItWasGiven(t *testing.T) {
	testenv.EachCgroup(t, func(t *testing.T, version int) {
		for _, tc := range []struct {
			gpus     int
			requests [][]int
		}{
			{3, [][]int{{0}, {1}, {2}, {0, 2}}},
			{4, [][]int{{0}, {1}, {2}, {3}, {1, 2}, {0, 1, 2, 3}}},
			{8, [][]int{{0}, {3}, {7}, {2, 6}}},
		} {
			t.Run(fmt.Sprintf("%d GPUs", tc.gpus), func(t *testing.T) {
				h := simhost.New(t, simhost.Options{Driver: sim.Options{GPUs: tc.gpus}, Env: testenv.Options{Cgroup: version}})
				for _, indices := range tc.requests {
					list := strings.Trim(strings.ReplaceAll(fmt.Sprint(indices), " ", ","), "[]")
					t.Run("GPU "+list, func(t *testing.T) {
						simhost.Compare(t, h.Probe(t, simhost.Visible(list)), h.Expect(indices))
					})
				}
				t.Run("all", func(t *testing.T) {
					simhost.Compare(t, h.Probe(t, simhost.Visible("all")), h.Expect([]int{0, 1, 2, 3, 4, 5, 6, 7}[:tc.gpus]))
				})
				t.Run("none is the driver without a GPU", func(t *testing.T) {
					got := h.Probe(t, simhost.Visible("none"))
					simhost.Compare(t, got, h.Expect(nil))
					if want := "No devices found.\n"; got.SMIText != want {
						t.Errorf("nvidia-smi -L: got %q, want %q", got.SMIText, want)
					}
					if !strings.Contains(got.CUDAText, "libcuda /") || !strings.Contains(got.CUDAText, "cuInit 100") {
						t.Errorf("libcuda is not there, or finds devices: %q", got.CUDAText)
					}
				})
			})
		}
	})
}

// What the container has is what every process in it has, at any time of its life.
func TestDevicesStayTheSameWhileAContainerLives(t *testing.T) {
	testenv.EachCgroup(t, func(t *testing.T, version int) {
		h := simhost.New(t, simhost.Options{Driver: sim.Options{GPUs: 3}, Env: testenv.Options{Cgroup: version}})
		probe := h.ProbeArgs()
		first := h.Start(t, simhost.Visible("0"))
		second := h.Start(t, simhost.Visible("2"))
		check := func(t *testing.T, id string, indices ...int) {
			t.Helper()
			r := h.Exec(t, id, probe...)
			if r.ExitCode != 0 {
				t.Fatalf("exec: exit status %d: %s", r.ExitCode, r.Error)
			}
			simhost.Compare(t, simhost.Parse(r.Output), h.Expect(indices))
		}
		t.Run("exec sees the container's GPU", func(t *testing.T) { check(t, first, 0) })
		t.Run("another container beside it sees its own", func(t *testing.T) { check(t, second, 2) })
		t.Run("after pause and resume", func(t *testing.T) {
			h.Ctr(t, "tasks", "pause", first)
			if out := h.Ctr(t, "tasks", "ls"); !strings.Contains(out, "PAUSED") {
				t.Errorf("no task is paused:\n%s", out)
			}
			h.Ctr(t, "tasks", "resume", first)
			check(t, first, 0)
		})
		t.Run("T36 after an update of its resources that denies every device", func(t *testing.T) {
			resources := specs.LinuxResources{Devices: []specs.LinuxDeviceCgroup{{Allow: false, Access: "rwm"}}}
			// A cgroup2 tree beside v1 hierarchies has no controller but the device program.
			if version == 1 || hasController(t, h, first, "memory") {
				resources.Memory = &specs.LinuxMemory{Limit: new(int64(512 << 20))}
			}
			value, err := json.Marshal(resources)
			if err != nil {
				t.Fatal(err)
			}
			task, ctx := api.Task(t, h.Env, first)
			if _, err := task.Update(ctx, &taskapi.UpdateTaskRequest{
				ID: first, Resources: &anypb.Any{TypeUrl: "types.containerd.io/opencontainers/runtime-spec/1/LinuxResources", Value: value},
			}); err != nil {
				t.Fatal(err)
			}
			check(t, first, 0)
			check(t, second, 2)
		})
		t.Run("T36 after containerd was restarted", func(t *testing.T) {
			h.Restart(t)
			check(t, first, 0)
		})
		t.Run("after its neighbour was deleted", func(t *testing.T) {
			h.Remove(t, second)
			check(t, first, 0)
		})
	})
}

func hasController(t testing.TB, h *simhost.Host, id, name string) bool {
	t.Helper()
	r := h.Exec(t, id, "/bin/cat", "/sys/fs/cgroup/cgroup.controllers")
	return strings.Contains(r.Output, name)
}

// A container whose task is deleted and created again has what it asked for the
// second time as well, from the same snapshot.
func TestATaskThatIsCreatedAgainHasItsGPUAgain(t *testing.T) {
	h := simhost.New(t, simhost.Options{Driver: sim.Options{GPUs: 3}})
	id := h.Create(t, testenv.RunOptions{
		Env: []string{"NVIDIA_VISIBLE_DEVICES=1"}, Args: h.ProbeArgs(),
	})
	defer h.Remove(t, id)
	for range 3 {
		r := h.StartTask(t, id)
		if r.ExitCode != 0 {
			t.Fatalf("exit status %d: %s", r.ExitCode, r.Error)
		}
		simhost.Compare(t, simhost.Parse(r.Output), h.Expect([]int{1}))
	}
}

// GPUs that the administrator excluded are neither counted nor given.
func TestAnExcludedGPUIsNeverGiven(t *testing.T) {
	h := simhost.New(t, simhost.Options{Driver: sim.Options{GPUs: 3, Excluded: []int{1}}})
	excluded := h.Driver.GPUs[1]
	for _, id := range []string{excluded.UUID, excluded.BusID, excluded.UUID[:12]} {
		t.Run("asked for as "+id, func(t *testing.T) {
			h.Refused(t, simhost.Visible(id), "is excluded from use on this host")
		})
	}
	// Index 1 is the next one that can be used.
	t.Run("indices count the others", func(t *testing.T) {
		simhost.Compare(t, h.Probe(t, simhost.Visible("1")), h.Expect([]int{2}))
	})
	t.Run("all is the others", func(t *testing.T) {
		simhost.Compare(t, h.Probe(t, simhost.Visible("all")), h.Expect([]int{0, 2}))
	})
	t.Run("index 2 does not exist", func(t *testing.T) {
		r := h.Run(t, testenv.RunOptions{Env: []string{"NVIDIA_VISIBLE_DEVICES=2"}, Args: []string{"/bin/true"}})
		if r.ExitCode == 0 || !strings.Contains(r.Error, `unknown GPU "2"`) || strings.Contains(r.Error, excluded.UUID) {
			t.Errorf("exit status %d: %s", r.ExitCode, r.Error)
		}
	})
}

// In a user namespace no process may make nodes: the host's own are bound.
func TestT35AUserNamespaceHasTheDevicesAndCannotChangeThem(t *testing.T) {
	testenv.EachCgroup(t, func(t *testing.T, version int) {
		h := simhost.New(t, simhost.Options{Driver: sim.Options{GPUs: 3}, Env: testenv.Options{Cgroup: version}})
		out := h.MustRun(t, testenv.RunOptions{
			Env: []string{"NVIDIA_VISIBLE_DEVICES=0,2"}, Args: h.ProbeArgs(),
			Extra: simhost.UserNamespace,
		})
		want := h.Expect([]int{0, 2})
		for i, n := range h.Nodes() {
			want.Mknod[i] = n.Number + " mknod EPERM"
		}
		simhost.Compare(t, simhost.Parse(out), want)
		// What the container does to a node must not affect the host's.
		before := modesOf(t, h)
		h.MustRun(t, testenv.RunOptions{
			Env: []string{"NVIDIA_VISIBLE_DEVICES=0"}, Args: []string{"/bin/sh", "-c", "chmod 600 /dev/nvidia2; chown 5 /dev/nvidia2; rm /dev/nvidia2; true"},
			Extra: simhost.UserNamespace,
		})
		if after := modesOf(t, h); after != before {
			t.Errorf("the host's nodes were\n%s\nand are\n%s", before, after)
		}
	})
}

func modesOf(t *testing.T, h *simhost.Host) string {
	t.Helper()
	var b strings.Builder
	for _, g := range h.Driver.GPUs {
		var st unix.Stat_t
		name := fmt.Sprintf("%s/dev/nvidia%d", h.Driver.DevRoot, g.Minor)
		if err := unix.Lstat(name, &st); err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&b, "%s %o %d:%d\n", name, st.Mode, st.Uid, st.Gid)
	}
	return b.String()
}
