package systemd

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simdriver/sim"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testenv"
)

// limits returns the limits of the container's GPU memory in MiB, "request limit", and the cgroups
// above it that have a sum of requests, with "" for the machine's root, which is a cgroup of the host.
func (c *container) limits(t *testing.T) (own, above []string) {
	t.Helper()
	list, err := c.m.Driver.CgroupLimits()
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range list {
		path := strings.TrimPrefix(l.Cgroup, "/sys/fs/cgroup")
		_, err := os.Stat(filepath.Join(c.m.cgroup, path))
		switch {
		case errors.Is(err, fs.ErrNotExist) || l.Soft == 0 && l.Hard == 1<<64-1:
		case filepath.Base(path) == c.scope():
			own = append(own, fmt.Sprintf("%d %d", l.Soft>>20, l.Hard>>20))
		default:
			above = append(above, path)
		}
	}
	slices.Sort(above)
	return own, above
}

// A scope has the container's limit, whatever systemd does to it. systemd removes the scope, with its
// request, as soon as the container ends, before it is deleted.
func TestALimitOfGPUMemoryInAScope(t *testing.T) {
	m := startMachineWith(t, sim.Options{GPUs: gpuCount, Version: "615.78.08"})
	if err := m.Driver.LimitMemory(sim.MemoryLimits{Backend: "dmem", File: "cgroup.type"}); err != nil { // all have that file
		t.Fatal(err)
	}
	limit := []string{"--env", "NVIDIA_GPU_MEMORY_LIMIT=8192"}
	options := filepath.Join(inContainerd, "systemd.toml")
	if err := os.WriteFile(m.dir+options, []byte("SystemdCgroup = true\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name, slice string
		above       []string
		flags       []string
	}{
		{"in the form of Docker and nerdctl", "system.slice", []string{"", "/system.slice"}, limit},
		{"in the form of a pod's", "testpods-burstable-pod4b6f.slice", []string{"", "/testpods.slice",
			"/testpods.slice/testpods-burstable.slice", "/testpods.slice/testpods-burstable.slice/testpods-burstable-pod4b6f.slice"}, limit},
		{"with SystemdCgroup", "system.slice", []string{"", "/system.slice"}, append([]string{"--runtime-config-path", options}, limit...)},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := m.sleep(t, 0, containerOptions{slice: tc.slice, flags: tc.flags})
			want := func(when, text string, sums []string) {
				t.Helper()
				if own, above := c.limits(t); strings.Join(own, ", ") != text || !slices.Equal(above, sums) {
					t.Errorf("%s: limits %q, above %q; want %q, %q", when, own, above, text, sums)
				}
			}
			want("created", "8192 8192", tc.above)
			m.run(t, "systemctl", "daemon-reload")
			m.run(t, "systemctl", "set-property", "--runtime", c.scope(), "TasksMax=500")
			want("after daemon-reload and set-property", "8192 8192", tc.above)
			m.run(t, "nvidia-shimctl", "--config", inConfig, "limit", c.id, "6Gi")
			want("changed", "6144 6144", tc.above)
			scope := c.cgroupDir(t)
			m.run(t, "ctr", "tasks", "kill", "--signal", "SIGKILL", c.id)
			testenv.Await(t, "systemd removes the scope", func() bool {
				_, err := os.Stat(scope)
				return err != nil
			})
			c.remove(t)
			want("deleted", "", nil)
			if left, _ := filepath.Glob(filepath.Join(m.Driver.StateDir, "gpu-memory-*.json")); len(left) > 0 {
				t.Errorf("left are %q", left)
			}
		})
	}
}
