package ctl

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simdriver/sim"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simhost"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testenv"
)

func TestMain(m *testing.M) { simhost.Main(m) }

// status is as much of `nvidia-shimctl --json status` as the tests look at.
type status struct {
	NVMLError string `json:"nvml_error"`
	GPUs      []struct {
		UUID       string          `json:"uuid"`
		Containers []string        `json:"containers"`
		Processes  []statusProcess `json:"processes"`
		MIG        []struct {
			UUID       string          `json:"uuid"`
			Containers []string        `json:"containers"`
			Processes  []statusProcess `json:"processes"`
		} `json:"mig"`
	} `json:"gpus"`
	Containers []statusContainer `json:"containers"`
}

type statusProcess struct {
	PID       int    `json:"pid"`
	Name      string `json:"name"`
	Container string `json:"container"`
	Memory    uint64 `json:"memory_bytes"`
}

type statusContainer struct {
	ID           string   `json:"id"`
	Namespace    string   `json:"namespace"`
	PodNamespace string   `json:"pod_namespace"`
	Pod          string   `json:"pod"`
	Name         string   `json:"name"`
	PID          int      `json:"pid"`
	GPUs         []string `json:"gpus"`
	MIG          []string `json:"mig"`
	Memory       uint64   `json:"memory_bytes"`
	Processes    int      `json:"processes"`
}

func statusOf(t testing.TB, h *simhost.Host) status {
	t.Helper()
	var s status
	if err := json.Unmarshal([]byte(h.Ctl(t, "--json", "status", "--state", h.State)), &s); err != nil {
		t.Fatal(err)
	}
	return s
}

// container is one of a status; others may run on this machine.
func (s status) container(id string) *statusContainer {
	i := slices.IndexFunc(s.Containers, func(c statusContainer) bool { return c.ID == id })
	if i < 0 {
		return nil
	}
	return &s.Containers[i]
}

// initPID is the first process of a container, on the host.
func initPID(t testing.TB, h *simhost.Host, id string) int {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(h.BundleDir(id), "init.pid"))
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(data)))
	if err != nil {
		t.Fatal(err)
	}
	return pid
}

// children are the processes that a process started.
func children(t testing.TB, pid int) (pids []int) {
	t.Helper()
	testenv.Await(t, fmt.Sprintf("children of process %d", pid), func() bool {
		data, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
		if err != nil {
			t.Fatal(err)
		}
		for field := range strings.FieldsSeq(string(data)) {
			child, _ := strconv.Atoi(field)
			pids = append(pids, child)
		}
		return len(pids) > 0
	})
	return pids
}

func TestStatusShowsWhoUsesAGPUAndHowMuchOfIt(t *testing.T) {
	testenv.EachCgroup(t, func(t *testing.T, version int) {
		h := simhost.New(t, simhost.Options{
			Driver: sim.Options{GPUs: 3, MIG: []sim.MIGDevice{{GPU: 2, GI: 1}, {GPU: 2, GI: 2}}},
			Env:    testenv.Options{Cgroup: version}, Config: "[policy]\nkubernetes = \"trust-env\"\n",
		})
		gpus, migs := h.Driver.GPUs, h.Driver.MIG
		// Names that no other test's container has.
		name := func(s string) string { return fmt.Sprintf("status-%s-%d-%d", s, os.Getpid(), version) }
		run := func(id, devices string, annotations ...string) int {
			h.MustRun(t, testenv.RunOptions{
				ID: id, Detach: true, Annotations: annotations,
				Env: []string{"NVIDIA_VISIBLE_DEVICES=" + devices}, Args: []string{"sh", "-c", "sleep 1000 & wait"},
			})
			return initPID(t, h, id)
		}
		plain, pod, mig := name("plain"), name("pod"), name("mig")
		plainPID := run(plain, "0,1")
		podPID := run(pod, "0", simhost.PodAnnotations("team", "train", "main")...)
		migPID := run(mig, migs[1].UUID)
		child := children(t, podPID)[0]
		if err := h.Driver.Place(
			sim.Process{UUID: gpus[0].UUID, PID: plainPID, Memory: 100 << 20},
			sim.Process{UUID: gpus[1].UUID, PID: plainPID, Memory: 11 << 20, Graphics: true},
			sim.Process{UUID: gpus[0].UUID, PID: child, Memory: 7 << 20},
			sim.Process{UUID: migs[1].UUID, PID: migPID, Memory: 3 << 20},
			sim.Process{UUID: gpus[0].UUID, PID: os.Getpid(), Memory: 1 << 20},
		); err != nil {
			t.Fatal(err)
		}
		s := statusOf(t, h)
		want := func(id string, memory uint64, c statusContainer) {
			t.Helper()
			got := s.container(id)
			if got == nil {
				t.Fatalf("%s is not in the status: %+v", id, s.Containers)
			}
			c.ID, c.Namespace, c.Memory, c.Processes = id, h.ID, memory, 1
			if fmt.Sprint(*got) != fmt.Sprint(c) { // an empty list may be null
				t.Errorf("%+v\nwant %+v", *got, c)
			}
		}
		want(plain, 111<<20, statusContainer{PID: plainPID, GPUs: []string{gpus[0].UUID, gpus[1].UUID}})
		want(pod, 7<<20, statusContainer{PID: podPID, GPUs: []string{gpus[0].UUID}, PodNamespace: "team", Pod: "train", Name: "main"})
		want(mig, 3<<20, statusContainer{PID: migPID, MIG: []string{migs[1].UUID}})
		owners := map[int]string{}
		for _, p := range s.GPUs[0].Processes {
			owners[p.PID] = p.Container
		}
		if owners[plainPID] != plain || owners[child] != pod || owners[os.Getpid()] != "" || len(owners) != 3 {
			t.Errorf("processes of GPU 0: %+v", s.GPUs[0].Processes)
		}
		if !slices.Contains(s.GPUs[0].Containers, pod) || slices.Contains(s.GPUs[1].Containers, pod) {
			t.Errorf("containers of GPU 0 %q, of GPU 1 %q", s.GPUs[0].Containers, s.GPUs[1].Containers)
		}
		if m := s.GPUs[2].MIG; len(m) != 2 || slices.Contains(m[0].Containers, mig) || !slices.Contains(m[1].Containers, mig) || len(m[1].Processes) != 1 {
			t.Errorf("MIG devices %+v", m)
		}

		h.Remove(t, pod)
		h.Remove(t, mig)
		h.Remove(t, plain)
		if s := statusOf(t, h); s.container(plain) != nil || slices.Contains(s.GPUs[0].Containers, plain) {
			t.Errorf("a container that is gone: %+v", s)
		}
	})
}

// countingShims is a directory with the shim and a probe that writes a line to the
// returned file each time it runs.
func countingShims(t *testing.T) (dir, count string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "shims")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	count = filepath.Join(dir, "count")
	shim, err := os.ReadFile(filepath.Join(testenv.ShimDir(), "containerd-shim-nvidia-v2"))
	if err != nil {
		t.Fatal(err)
	}
	// The questions are in a file, which is opened again here.
	probe := fmt.Sprintf("#!/bin/sh\n{ cat /proc/self/fd/0; echo; } >> %s\nexec %s \"$@\"\n", count, filepath.Join(testenv.ShimDir(), "nvidia-shimctl"))
	for name, content := range map[string]string{"containerd-shim-nvidia-v2": string(shim), "nvidia-shimctl": probe} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return dir, count
}

func executions(t *testing.T, count string) int {
	t.Helper()
	data, err := os.ReadFile(count)
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	return strings.Count(string(data), `"facts":true`)
}

func TestTheProbeRunsOnceAndOnlyWhereARequestNeedsIt(t *testing.T) {
	dir, count := countingShims(t)
	h := simhost.New(t, simhost.Options{Env: testenv.Options{ShimDir: dir}})
	run := func(env ...string) testenv.Result {
		return h.Run(t, testenv.RunOptions{Env: append(env, "NVIDIA_VISIBLE_DEVICES=0"), Args: []string{"true"}})
	}
	for _, env := range []string{"A=B", "NVIDIA_REQUIRE_X=driver>=1", "NVIDIA_DRIVER_CAPABILITIES=all"} {
		if r := run(env); r.ExitCode != 0 {
			t.Fatalf("%s: exit status %d: %s", env, r.ExitCode, r.Error)
		}
	}
	if n := executions(t, count); n != 0 {
		t.Fatalf("the probe ran %d times for requests that do not need it", n)
	}
	var group sync.WaitGroup
	for range 16 {
		group.Go(func() {
			if r := run("NVIDIA_REQUIRE_X=arch>=9"); r.ExitCode != 0 {
				t.Errorf("exit status %d: %s", r.ExitCode, r.Error)
			}
		})
	}
	group.Wait()
	if n := executions(t, count); n != 1 {
		t.Errorf("the probe ran %d times for 16 containers", n)
	}
}
