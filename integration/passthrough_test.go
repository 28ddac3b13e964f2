package integration

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simdriver/sim"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testenv"
)

// devNoRequest are containers that ask for no GPU.
var devNoRequest = []struct {
	name        string
	env         []string
	annotations []string
}{
	{"unset", nil, nil},
	{"empty", []string{"NVIDIA_VISIBLE_DEVICES="}, nil},
	{"void", []string{"NVIDIA_VISIBLE_DEVICES=void", "NVIDIA_DRIVER_CAPABILITIES=nonsense"}, nil},
	{"only commas", []string{"NVIDIA_VISIBLE_DEVICES=, ,"}, nil},
	{"capabilities alone", []string{"NVIDIA_DRIVER_CAPABILITIES=all"}, nil},
	{"a pod's sandbox", []string{"NVIDIA_VISIBLE_DEVICES=all"}, []string{"io.kubernetes.cri.container-type=sandbox"}},
}

// A container that asked for no GPU runs as under the stock shim: the same bytes of
// config.json, the same files in its bundle but for the shim's address, the same mounts, nothing in the state
// directory, not a word in the log; and it never suffers from what is wrong with
// the GPUs of its host (I10).
func TestAContainerWithoutARequestIsUntouched(t *testing.T) {
	h := newDevHost(t, hostOptions{Options: sim.Options{GPUs: 3}})
	for _, state := range []struct {
		name  string
		spoil func(t *testing.T)
	}{
		{"on a good host", func(*testing.T) {}},
		{"with a broken configuration", func(t *testing.T) {
			devRestore(t, h.Driver.ConfigPath)
			devWriteFile(t, h.Driver.ConfigPath, "nonsense = [\n")
		}},
		{"with a configuration that everybody can write", func(t *testing.T) {
			if err := os.Chmod(h.Driver.ConfigPath, 0o666); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = os.Chmod(h.Driver.ConfigPath, 0o644) })
		}},
		{"without a configuration", func(t *testing.T) { devAway(t, h.Driver.ConfigPath) }},
		{"without a driver", func(t *testing.T) { devAway(t, filepath.Join(h.Driver.ProcRoot, "driver")) }},
		{"without the driver's files and nodes", func(t *testing.T) {
			devAway(t, h.Driver.Root)
			devAway(t, h.Driver.DevRoot)
		}},
	} {
		t.Run(state.name, func(t *testing.T) {
			state.spoil(t)
			for _, tc := range devNoRequest {
				t.Run(tc.name, func(t *testing.T) {
					before := h.Snapshot(t)
					o := testenv.RunOptions{ID: h.NewID(), Env: tc.env, Annotations: tc.annotations}
					stock := devBundleOf(t, h, o, testenv.StockRuntime)
					ours := devBundleOf(t, h, o, testenv.DefaultRuntime)
					if !bytes.Equal(stock.config, ours.config) {
						t.Errorf("config.json differs:\nstock %s\nours  %s", stock.config, ours.config)
					}
					// The one file more is the shim's address, by which daemons before 2.3
					// find it again and by which it removes its socket.
					if !slices.Equal(append([]string{"address"}, stock.files...), ours.files) {
						t.Errorf("the bundle's files differ:\nstock %q\nours  %q", stock.files, ours.files)
					}
					if !slices.Equal(stock.mounts, ours.mounts) {
						t.Errorf("mounts differ:\nstock %q\nours  %q", stock.mounts, ours.mounts)
					}
					if !slices.Equal(stock.dev, ours.dev) {
						t.Errorf("/dev differs:\nstock %q\nours  %q", stock.dev, ours.dev)
					}
					for _, level := range []string{"debug", "info", "warning", "error"} {
						if lines := h.devOurLines(o.ID, level); len(lines) > 0 {
							t.Errorf("lines in the log: %q", lines)
						}
					}
					if _, err := os.Stat(h.Driver.StateDir); !os.IsNotExist(err) {
						t.Errorf("the state directory was made: %v", err)
					}
					h.AssertUnchanged(t, before)
				})
			}
		})
	}
}

// devBundle is what a running container shows.
type devBundle struct {
	config             []byte
	files, mounts, dev []string
}

// devBundleOf runs a container, looks, and removes it.
func devBundleOf(t *testing.T, h *devHost, o testenv.RunOptions, runtime string) devBundle {
	t.Helper()
	o.Runtime = runtime
	o.Image, o.Detach, o.Args = h.Image, true, []string{"/bin/sleep", "600"}
	h.Run(t, o)
	defer h.Remove(t, o.ID)
	var b devBundle
	var err error
	if b.config, err = os.ReadFile(filepath.Join(h.BundleDir(o.ID), "config.json")); err != nil {
		t.Fatal(err)
	}
	b.files = devNames(t, h.BundleDir(o.ID))
	out := h.Exec(t, o.ID, "/bin/sh", "-c", "cat /proc/self/mountinfo; echo == dev; ls -lR /dev").Stdout
	table, dev, _ := strings.Cut(out, "== dev\n")
	for line := range strings.Lines(table) {
		f := strings.Fields(line)
		i := slices.Index(f, "-")
		if len(f) < 10 || i < 0 {
			t.Fatalf("mountinfo: %q", line)
		}
		// Without identifiers and the numbers of snapshots.
		source := f[i+2]
		if f[i+1] == "overlay" {
			source = "overlay"
		}
		b.mounts = append(b.mounts, strings.Join([]string{f[4], f[5], f[i+1], source}, " "))
	}
	for line := range strings.Lines(dev) {
		f := strings.Fields(line)
		if len(f) > 9 && (line[0] == 'c' || line[0] == 'b') {
			f = append(f[:6], f[9:]...) // times, behind two numbers of a device
		} else if len(f) > 8 {
			f = append(f[:5], f[8:]...)
		}
		b.dev = append(b.dev, strings.Join(f, " "))
	}
	return b
}

// devAway takes a file or directory away for the time of a test.
func devAway(t *testing.T, name string) {
	t.Helper()
	if err := os.Rename(name, name+".away"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = os.RemoveAll(name)
		if err := os.Rename(name+".away", name); err != nil {
			t.Error(err)
		}
	})
}

// devRestore puts a file's content back when the test ends.
func devRestore(t *testing.T, name string) {
	t.Helper()
	data, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.WriteFile(name, data, 0o600); err != nil {
			t.Error(err)
		}
	})
}

// A handler's options file: runc's own keys, and tables of this shim.
func TestAHandlersOptionsFileIsHonoured(t *testing.T) {
	h := newDevHost(t, hostOptions{Options: sim.Options{GPUs: 3}})
	run := func(t *testing.T, toml string, env ...string) testenv.Result {
		t.Helper()
		name := devWriteFile(t, filepath.Join(h.Dir, h.NewID()+".toml"), toml)
		return h.Run(t, testenv.RunOptions{Image: h.Image, Env: env, Args: []string{"/bin/sh", "-c", "ls /dev | grep nvidia; true"}, Extra: []string{"--runtime-config-path", name}})
	}
	refused := func(t *testing.T, r testenv.Result, words ...string) {
		t.Helper()
		if r.ExitCode == 0 {
			t.Fatalf("not refused: %s", r.Stdout)
		}
		for _, w := range words {
			if !strings.Contains(r.Stderr, w) {
				t.Errorf("the error does not say %s: %s", w, r.Stderr)
			}
		}
	}
	t.Run("an empty file", func(t *testing.T) {
		if r := run(t, "", "NVIDIA_VISIBLE_DEVICES=0"); r.ExitCode != 0 || !strings.Contains(r.Stdout, "nvidia2\n") {
			t.Errorf("exit status %d: %s%s", r.ExitCode, r.Stdout, r.Stderr)
		}
	})
	t.Run("BinaryName is the program that is executed", func(t *testing.T) {
		marker := filepath.Join(h.Dir, "marker")
		wrapper := filepath.Join(h.Dir, "runc-wrapper")
		script := "#!/bin/sh\necho \"$@\" >>" + marker + "\nexec " + filepath.Join(h.Options.ToolsDir, "runc") + " \"$@\"\n"
		if err := os.WriteFile(wrapper, []byte(script), 0o700); err != nil {
			t.Fatal(err)
		}
		if r := run(t, "BinaryName = \""+wrapper+"\"\n", "NVIDIA_VISIBLE_DEVICES=0"); r.ExitCode != 0 {
			t.Fatalf("exit status %d: %s", r.ExitCode, r.Stderr)
		}
		data, err := os.ReadFile(marker)
		if err != nil || !strings.Contains(string(data), " create ") {
			t.Errorf("the wrapper saw %q: %v", data, err)
		}
	})
	t.Run("Root is where runc keeps its state", func(t *testing.T) {
		root := filepath.Join(h.Dir, "runc-root")
		name := devWriteFile(t, filepath.Join(h.Dir, "root.toml"), "Root = \""+root+"\"\n")
		id := h.devSleep(t, testenv.RunOptions{Env: []string{"NVIDIA_VISIBLE_DEVICES=0"}, Extra: []string{"--runtime-config-path", name}})
		if _, err := os.Stat(filepath.Join(root, h.ID, id, "state.json")); err != nil {
			t.Error(err)
		}
	})
	t.Run("SystemdCgroup against the form of the cgroup path is overruled with a warning", func(t *testing.T) {
		r := run(t, "SystemdCgroup = true\n", "NVIDIA_VISIBLE_DEVICES=0")
		if r.ExitCode != 0 {
			t.Fatalf("exit status %d: %s", r.ExitCode, r.Stderr)
		}
		if lines := h.devOurLines(r.ID, "warning"); len(lines) != 1 || !strings.Contains(lines[0], "SystemdCgroup") {
			t.Errorf("warnings: %q", lines)
		}
	})
	t.Run("[container] bounds the capabilities", func(t *testing.T) {
		r := run(t, "[container]\nsupported-capabilities = [\"utility\"]\n", "NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_DRIVER_CAPABILITIES=compute")
		refused(t, r, `capability "compute" is not supported here`, "supported: utility")
		r = run(t, "[container]\nsupported-capabilities = [\"utility\"]\n", "NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_DRIVER_CAPABILITIES=all")
		if r.ExitCode != 0 || strings.Contains(r.Stdout, "nvidia-uvm") {
			t.Errorf("exit status %d: %s%s", r.ExitCode, r.Stdout, r.Stderr)
		}
	})
	t.Run("[policy] says who may ask", func(t *testing.T) {
		const off = "[policy]\naccept-env-when-unprivileged = false\n"
		refused(t, run(t, off, "NVIDIA_VISIBLE_DEVICES=0"), `GPU "0" is not this container's`, "accept-env-when-unprivileged")
		if r := run(t, off, "NVIDIA_VISIBLE_DEVICES=all"); r.ExitCode != 0 || r.Stdout != "" {
			t.Errorf("exit status %d: %q %s", r.ExitCode, r.Stdout, r.Stderr)
		}
	})
	for _, tc := range []struct {
		name, toml string
		words      []string
	}{
		{"an unknown key is refused by name", "BinaryNam = \"runc\"\n", []string{`unknown key "BinaryNam"`}},
		{"an unknown table is refused by name", "[host]\ndriver-root = \"/\"\n", []string{`unknown key "host`}},
		{"an unknown key of a table is refused by name", "[policy]\nkubernets = \"enforce\"\n", []string{"kubernets"}},
		{"a bad value is refused by name", "[policy]\nkubernetes = \"perhaps\"\n", []string{"policy.kubernetes", "perhaps"}},
		{"a value of another type is refused by name", "SystemdCgroup = \"yes\"\n", []string{"SystemdCgroup"}},
		{"what is no TOML is refused with its line", "a = [\n", []string{"line"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			before := h.Snapshot(t, h.State)
			for _, env := range []string{"NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_VISIBLE_DEVICES=void"} {
				refused(t, run(t, tc.toml, env), append(tc.words, ".toml")...)
			}
			h.AssertUnchanged(t, before)
		})
	}
	t.Run("a file that others can write is refused", func(t *testing.T) {
		name := devWriteFile(t, filepath.Join(h.Dir, "open.toml"), "")
		if err := os.Chmod(name, 0o666); err != nil {
			t.Fatal(err)
		}
		r := h.Run(t, testenv.RunOptions{Image: h.Image, Args: []string{"/bin/true"}, Extra: []string{"--runtime-config-path", name}})
		refused(t, r, "can be written by others than root", name)
	})
	t.Run("a file that is not there is refused by name", func(t *testing.T) {
		r := h.Run(t, testenv.RunOptions{Image: h.Image, Args: []string{"/bin/true"}, Extra: []string{"--runtime-config-path", "/nowhere/options.toml"}})
		refused(t, r, "/nowhere/options.toml")
	})
}
