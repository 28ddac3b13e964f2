package simhost

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/images"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testenv"
)

// Visible returns the options of a container with this NVIDIA_VISIBLE_DEVICES.
func Visible(value string, env ...string) testenv.RunOptions {
	return testenv.RunOptions{Env: append([]string{"NVIDIA_VISIBLE_DEVICES=" + value}, env...)}
}

// Start starts a container that waits and returns its name. It is removed with the test.
func (h *Host) Start(t testing.TB, o testenv.RunOptions) string {
	t.Helper()
	o.Detach = true
	if o.Args == nil {
		o.Args = []string{"/bin/sleep", "600"}
	}
	id := h.Run(t, o).ID
	t.Cleanup(func() { h.Gone(t, id) })
	return id
}

// Gone removes a container unless the test has done so.
func (h *Host) Gone(t testing.TB, id string) {
	t.Helper()
	_, _, _ = h.CtrErr("tasks", "rm", "--force", id)
	if _, _, err := h.CtrErr("containers", "rm", id); err != nil && !strings.Contains(err.Error(), "not found") {
		t.Error(err)
	}
}

// Sh runs a script in a running container; it has to exit with 0.
func (h *Host) Sh(t testing.TB, id, script string) string {
	t.Helper()
	r := h.Exec(t, id, "/bin/sh", "-c", script)
	if r.ExitCode != 0 {
		t.Errorf("%s\nexit status %d\n%s%s", script, r.ExitCode, r.Output, r.Error)
	}
	return r.Output
}

// Refused runs a container that must not start, with an error that has these words.
func (h *Host) Refused(t testing.TB, o testenv.RunOptions, words ...string) {
	t.Helper()
	if o.Args == nil {
		o.Args = []string{"/bin/true"}
	}
	r := h.Run(t, o)
	if r.ExitCode == 0 {
		t.Fatalf("the container started: %s", r.Output)
	}
	Want(t, r.Error, words...)
}

// Want fails the test for each of wants that is not in out.
func Want(t testing.TB, out string, wants ...string) {
	t.Helper()
	for _, want := range wants {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in:\n%s", want, out)
		}
	}
}

// Tree unpacks a named image into a new directory of the host's environment.
func (h *Host) Tree(t testing.TB, name string, more ...images.File) string {
	t.Helper()
	return h.Unpack(t, build(t, name), more...)
}

// Unpack is Tree for the tar of an image.
func (h *Host) Unpack(t testing.TB, tar string, more ...images.File) string {
	t.Helper()
	dir, err := os.MkdirTemp(h.Dir, "rootfs")
	if err == nil {
		err = os.Chmod(dir, 0o755)
	}
	if err == nil {
		err = images.Unpack(tar, dir)
	}
	if err == nil {
		err = images.Populate(dir, more)
	}
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// Spec is the OCI configuration that ctr makes for o, for a test to change. Its root
// file system is o.RootfsDir, or a tree of the default image that all of them share.
func (h *Host) Spec(t testing.TB, o testenv.RunOptions) map[string]any {
	t.Helper()
	if o.RootfsDir == "" {
		if h.tree == "" {
			h.tree = h.Tree(t, DefaultImage)
		}
		o.RootfsDir = h.tree
	}
	id := h.Create(t, o)
	defer h.Remove(t, id)
	var spec map[string]any
	d := json.NewDecoder(bytes.NewReader([]byte(h.Ctr(t, "containers", "info", "--spec", id))))
	d.UseNumber()
	if err := d.Decode(&spec); err != nil {
		t.Fatal(err)
	}
	return spec
}

// RunSpec runs a container with exactly this OCI configuration.
func (h *Host) RunSpec(t testing.TB, spec map[string]any, flags ...string) testenv.Result {
	t.Helper()
	id := h.NewID()
	spec["linux"].(map[string]any)["cgroupsPath"] = "/" + h.ID + "/" + id
	data, err := json.Marshal(spec)
	if err != nil {
		t.Fatal(err)
	}
	name := WriteFile(t, filepath.Join(h.Dir, id+".json"), string(data))
	defer h.Gone(t, id)
	return h.RunConfig(t, id, append([]string{"--config", name}, flags...)...)
}

// GPUMemory returns the memory that processes have on simulated GPUs, in bytes.
func GPUMemory(t testing.TB, pids ...int) (sum int64) {
	t.Helper()
	for _, pid := range pids {
		fds, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
		for _, fd := range fds {
			if to, _ := os.Readlink(fd); strings.HasPrefix(to, "/memfd:nvidia-sim-gpu") {
				info, err := os.Stat(fd)
				if err != nil {
					t.Fatal(err)
				}
				sum += info.Size()
			}
		}
	}
	return sum
}
