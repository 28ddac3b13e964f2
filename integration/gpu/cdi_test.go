//go:build gpu

package gpu

import (
	"encoding/json"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testenv"
)

// node is a device node as a CDI specification describes it.
func node(t *testing.T, name string) map[string]any {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Stat(name, &st); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return map[string]any{"path": name, "type": "c", "major": unix.Major(st.Rdev), "minor": unix.Minor(st.Rdev), "permissions": "rwm"}
}

// writeCDI writes a specification as NVIDIA's generator does, with a device for each
// GPU and one for all, in a directory where ctr looks. Its hooks are a script that
// leaves a mark.
func writeCDI(t *testing.T, env *testenv.Env, gpus []gpu) (mark string) {
	t.Helper()
	// Not below t.TempDir, which the hooks' user might not enter.
	dir, err := os.MkdirTemp("", "nvgpu")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	mark = filepath.Join(dir, "mark")
	hook := filepath.Join(dir, "nvidia-cdi-hook")
	if err := os.WriteFile(hook, []byte("#!/bin/sh\necho \"$@\" >>"+mark+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	var control, all, mounts []map[string]any
	for _, name := range []string{"/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"} {
		if _, err := os.Stat(name); err == nil {
			control = append(control, node(t, name))
		}
	}
	for _, file := range infoFiles(t, env).all() {
		if base := path.Base(file); strings.HasPrefix(base, "libcuda.so.") || strings.HasPrefix(base, "libnvidia-ml.so.") {
			mounts = append(mounts, map[string]any{"hostPath": file, "containerPath": file, "options": []string{"ro", "nosuid", "nodev", "rbind", "rprivate"}})
		}
	}
	var devices []map[string]any
	device := func(name string, nodes []map[string]any) {
		devices = append(devices, map[string]any{"name": name, "containerEdits": map[string]any{"deviceNodes": nodes}})
	}
	for _, g := range gpus {
		n := node(t, "/dev/nvidia"+g.Minor)
		all = append(all, n)
		device("acceptance"+g.Index, []map[string]any{n})
	}
	device("acceptance-all", all)
	call := func(args ...string) map[string]any {
		return map[string]any{"hookName": "createContainer", "path": hook, "args": append([]string{"nvidia-cdi-hook"}, args...)}
	}
	data, err := json.Marshal(map[string]any{
		"cdiVersion": "0.5.0", "kind": "nvidia.com/gpu", "devices": devices,
		"containerEdits": map[string]any{
			"env": []string{"NVIDIA_VISIBLE_DEVICES=void"}, "deviceNodes": control, "mounts": mounts,
			"hooks": []any{call("update-ldcache", "--folder", "/usr/lib64"), call("disable-device-node-modification")},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	const place = "/var/run/cdi"
	if err := os.Mkdir(place, 0o755); err == nil {
		t.Cleanup(func() { os.Remove(place) })
	}
	name := filepath.Join(place, env.ID+".json")
	if err := os.WriteFile(name, data, 0o644); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.Remove(name) })
	return mark
}

// The shim gives a container the devices that CDI gave it, and NVIDIA's hooks do not run.
func TestCDIDevicesAreTakenOver(t *testing.T) {
	gpus := hostGPUs(t)
	env := newEnv(t, "")
	mark := writeCDI(t, env, gpus)
	run := func(rt, device, text string) string {
		t.Helper()
		o := testenv.RunOptions{Runtime: rt, Image: imageRef, Args: []string{"sh", "-c", text}}
		o.Extra = []string{"--device", "nvidia.com/gpu=" + device}
		return env.MustRun(t, o)
	}
	check := func(device string, granted []gpu) {
		t.Helper()
		out := run(runtime, device, "nvidia-smi -L; vectoradd; ls /dev | grep nvidia; ls /proc/driver/nvidia/gpus; grep ' /usr/local/nvidia ' /proc/self/mountinfo; true")
		for _, g := range gpus {
			want := false
			for _, h := range granted {
				want = want || h.UUID == g.UUID
			}
			for _, sign := range []string{g.UUID, "\nnvidia" + g.Minor + "\n", g.Bus + "\n"} {
				if strings.Contains(out, sign) != want {
					t.Errorf("nvidia.com/gpu=%s: %q is there: %v\n%s", device, sign, !want, out)
				}
			}
		}
		if !strings.Contains(out, fmt.Sprintf("count %d\n", len(granted))) || strings.Count(out, " ok\n") != len(granted) {
			t.Errorf("nvidia.com/gpu=%s: CUDA does not work\n%s", device, out)
		}
		if !strings.Contains(out, " /usr/local/nvidia ") {
			t.Errorf("nvidia.com/gpu=%s: the driver is not where we put it\n%s", device, out)
		}
		if data, err := os.ReadFile(mark); err == nil {
			t.Errorf("nvidia.com/gpu=%s: NVIDIA's hooks ran: %s", device, data)
		}
	}
	for i, g := range gpus {
		check("acceptance"+g.Index, gpus[i:i+1])
	}
	check("acceptance-all", gpus)
	// With the stock runtime they do run: the mark tells.
	run(testenv.StockRuntime, "acceptance0", "true")
	data, err := os.ReadFile(mark)
	if err != nil || !strings.Contains(string(data), "update-ldcache") {
		t.Errorf("the stock runtime did not run the hooks, so that nothing is shown: %s %v", data, err)
	}
}
