//go:build gpu

package gpu

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testenv"
)

// holds lists what a process has of the driver: open nodes and mapped libraries.
func holds(pid int) []string {
	var list []string
	dir := fmt.Sprintf("/proc/%d", pid)
	fds, _ := filepath.Glob(dir + "/fd/*")
	for _, fd := range fds {
		if to, err := os.Readlink(fd); err == nil && strings.HasPrefix(to, "/dev/nvidia") {
			list = append(list, "fd "+to)
		}
	}
	maps, err := os.ReadFile(dir + "/maps")
	if err != nil {
		return append(list, err.Error())
	}
	for line := range strings.Lines(string(maps)) {
		f := strings.Fields(line)
		if len(f) > 5 && (strings.Contains(f[5], "libnvidia") || strings.Contains(f[5], "libcuda") || strings.HasPrefix(f[5], "/dev/nvidia")) {
			list = append(list, "maps "+f[5])
		}
	}
	slices.Sort(list)
	return slices.Compact(list)
}

// ours lists the processes that run a binary of dir, without those whose program
// is one of the others.
func ours(t testing.TB, dir string, name string) []int {
	t.Helper()
	want, err := filepath.EvalSymlinks(filepath.Join(dir, name))
	if err != nil {
		t.Fatal(err)
	}
	var pids []int
	exes, _ := filepath.Glob("/proc/[0-9]*/exe")
	for _, exe := range exes {
		if to, err := os.Readlink(exe); err == nil && to == want {
			var pid int
			if _, err := fmt.Sscanf(exe, "/proc/%d/exe", &pid); err == nil {
				pids = append(pids, pid)
			}
		}
	}
	return pids
}

// startHold starts a container that holds memory of a GPU, and waits until it does.
func startHold(t testing.TB, env *testenv.Env, visible string, mib int, variables ...string) string {
	t.Helper()
	o := script(env, visible, fmt.Sprintf("hold %d 600 >/tmp/held", mib), variables...)
	o.Detach = true
	id := env.Run(t, o).ID
	testenv.Await(t, fmt.Sprintf("container %s gets %d MiB of GPU %s", id, mib, visible), func() bool {
		r := env.Exec(t, id, "cat", "/tmp/held")
		if strings.Contains(r.Output, "failed") || strings.Contains(r.Error, "stopped") {
			t.Fatalf("container %s does not get %d MiB of GPU %s: %+v", id, mib, visible, r)
		}
		return strings.Contains(r.Output, "holding ")
	})
	return id
}

// A shim reads about GPUs from files only, and the probe that answers the rest is
// gone when it has answered.
func TestNoShimKeepsTheDriverOpen(t *testing.T) {
	gpus := hostGPUs(t)
	env := newEnv(t, "")
	ids := map[string]string{}
	for _, g := range gpus {
		ids[g.Index] = startHold(t, env, g.Index, 64, "NVIDIA_REQUIRE_CUDA=cuda>=11.0 brand=unknown")
	}
	if found := holds(os.Getpid()); len(found) > 0 {
		t.Fatalf("this test itself holds the driver: %v", found)
	}
	check := func(when string) {
		t.Helper()
		for index, id := range ids {
			pids := env.ShimPIDs(id)
			if len(pids) == 0 {
				t.Errorf("%s: no shim of the container with GPU %s", when, index)
			}
			for _, pid := range pids {
				if found := holds(pid); len(found) > 0 {
					t.Errorf("%s: shim %d of the container with GPU %s has %v", when, pid, index, found)
				}
			}
		}
		for _, name := range []string{"nvidia-shimctl", "nvidia-shim-nvml"} {
			if pids := ours(t, testenv.ShimDir(), name); len(pids) > 0 {
				t.Errorf("%s: %s still runs: %v", when, name, pids)
			}
		}
	}
	check("with CUDA running")
	// The check does find a process that has the driver open.
	for index, id := range ids {
		seen := false
		for _, pid := range env.PIDs(t, id) {
			seen = seen || slices.ContainsFunc(holds(pid), func(s string) bool { return strings.HasPrefix(s, "fd /dev/nvidia") })
		}
		if !seen {
			t.Errorf("the program on GPU %s is not seen to have the driver open", index)
		}
		if r := env.Exec(t, id, "nvidia-smi", "-L"); r.ExitCode != 0 {
			t.Errorf("exec: %+v", r)
		}
	}
	check("after an exec")
	for _, id := range ids {
		_, _, _ = env.CtrErr("tasks", "kill", "-s", "KILL", id)
	}
	testenv.Await(t, "the tasks stop", func() bool { return strings.Count(env.Ctr(t, "tasks", "ls"), "STOPPED") == len(ids) })
	check("after the programs' end")
	for _, id := range ids {
		env.Remove(t, id)
	}
	testenv.Await(t, "the shims end", func() bool { return len(ours(t, testenv.ShimDir(), "containerd-shim-nvidia-v2")) == 0 })
}
