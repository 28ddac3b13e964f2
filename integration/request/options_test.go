package request

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simdriver/sim"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simhost"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testenv"
)

// A handler's options file: runc's own keys, and tables of this shim.
func TestAHandlersOptionsFileIsHonoured(t *testing.T) {
	h := simhost.New(t, simhost.Options{Driver: sim.Options{GPUs: 3}})
	run := func(t *testing.T, toml string, env ...string) testenv.Result {
		t.Helper()
		name := simhost.WriteFile(t, filepath.Join(h.Dir, h.NewID()+".toml"), toml)
		return h.Run(t, testenv.RunOptions{Env: env, Args: []string{"/bin/sh", "-c", "ls /dev | grep nvidia; true"}, Extra: []string{"--runtime-config-path", name}})
	}
	refused := func(t *testing.T, r testenv.Result, words ...string) {
		t.Helper()
		if r.ExitCode == 0 {
			t.Fatalf("not refused: %s", r.Output)
		}
		simhost.Want(t, r.Error, words...)
	}
	t.Run("an empty file", func(t *testing.T) {
		if r := run(t, "", "NVIDIA_VISIBLE_DEVICES=0"); r.ExitCode != 0 || !strings.Contains(r.Output, "nvidia2\n") {
			t.Errorf("exit status %d: %s%s", r.ExitCode, r.Output, r.Error)
		}
	})
	t.Run("BinaryName is the program that is executed", func(t *testing.T) {
		marker := filepath.Join(h.Dir, "marker")
		wrapper := simhost.Script(t, filepath.Join(h.Dir, "runc-wrapper"), "echo \"$@\" >>"+marker+"\nexec "+filepath.Join(h.Options.ToolsDir, "runc")+" \"$@\"\n")
		if r := run(t, "BinaryName = \""+wrapper+"\"\n", "NVIDIA_VISIBLE_DEVICES=0"); r.ExitCode != 0 {
			t.Fatalf("exit status %d: %s", r.ExitCode, r.Error)
		}
		data, err := os.ReadFile(marker)
		if err != nil || !strings.Contains(string(data), " create ") {
			t.Errorf("the wrapper saw %q: %v", data, err)
		}
	})
	t.Run("Root is where runc keeps its state", func(t *testing.T) {
		root := filepath.Join(h.Dir, "runc-root")
		name := simhost.WriteFile(t, filepath.Join(h.Dir, "root.toml"), "Root = \""+root+"\"\n")
		id := h.Start(t, testenv.RunOptions{Env: []string{"NVIDIA_VISIBLE_DEVICES=0"}, Extra: []string{"--runtime-config-path", name}})
		if _, err := os.Stat(filepath.Join(root, h.ID, id, "state.json")); err != nil {
			t.Error(err)
		}
	})
	t.Run("SystemdCgroup against the form of the cgroup path is overruled with a warning", func(t *testing.T) {
		r := run(t, "SystemdCgroup = true\n", "NVIDIA_VISIBLE_DEVICES=0")
		if r.ExitCode != 0 {
			t.Fatalf("exit status %d: %s", r.ExitCode, r.Error)
		}
		if lines := h.LogLines(r.ID, "warning"); len(lines) != 1 || !strings.Contains(lines[0], "SystemdCgroup") {
			t.Errorf("warnings: %q", lines)
		}
	})
	t.Run("[container] bounds the capabilities", func(t *testing.T) {
		r := run(t, "[container]\nsupported-capabilities = [\"utility\"]\n", "NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_DRIVER_CAPABILITIES=compute")
		refused(t, r, `capability "compute" is not supported here`, "supported: utility")
		r = run(t, "[container]\nsupported-capabilities = [\"utility\"]\n", "NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_DRIVER_CAPABILITIES=all")
		if r.ExitCode != 0 || strings.Contains(r.Output, "nvidia-uvm") {
			t.Errorf("exit status %d: %s%s", r.ExitCode, r.Output, r.Error)
		}
	})
	t.Run("[policy] says who may ask", func(t *testing.T) {
		const off = "[policy]\naccept-env-when-unprivileged = false\n"
		refused(t, run(t, off, "NVIDIA_VISIBLE_DEVICES=0"), `GPU "0" is not this container's`, "accept-env-when-unprivileged")
		if r := run(t, off, "NVIDIA_VISIBLE_DEVICES=all"); r.ExitCode != 0 || r.Output != "" {
			t.Errorf("exit status %d: %q %s", r.ExitCode, r.Output, r.Error)
		}
	})
	for _, tc := range []struct {
		name, toml string
		words      []string
	}{
		{"an unknown key is refused by name", "BinaryNam = \"runc\"\n", []string{`unknown key "BinaryNam"`}},
		{"an unknown key of a table is refused by name", "[policy]\nkubernets = \"enforce\"\n", []string{"kubernets"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			before := h.Snapshot(t, h.State)
			for _, env := range []string{"NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_VISIBLE_DEVICES=void"} {
				refused(t, run(t, tc.toml, env), append(tc.words, ".toml")...)
			}
			before.AssertUnchanged(t)
		})
	}
	t.Run("a file that others can write is refused", func(t *testing.T) {
		name := simhost.WriteFile(t, filepath.Join(h.Dir, "open.toml"), "")
		if err := os.Chmod(name, 0o666); err != nil {
			t.Fatal(err)
		}
		h.Refused(t, testenv.RunOptions{Extra: []string{"--runtime-config-path", name}}, "is writable by users other than root", name)
	})
	t.Run("a file that is not there is refused by name", func(t *testing.T) {
		h.Refused(t, testenv.RunOptions{Extra: []string{"--runtime-config-path", "/nowhere/options.toml"}}, "/nowhere/options.toml")
	})
}
