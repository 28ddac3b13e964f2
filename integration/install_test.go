package integration

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testenv"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/runtimeclass"
)

// A node is set up by one command: containerd, started with what `nvidia-shimctl
// install` made of its configuration, reads the handler and runs a GPU container with
// the runtime that the handler names; `uninstall` gives the bytes back.
func TestInstalledContainerdRunsGPUContainers(t *testing.T) {
	ctl := filepath.Join(testenv.ShimDir(), runtimeclass.CtlName)
	if _, err := os.Stat(ctl); err != nil {
		t.Fatalf("%v: run `make build`", err)
	}
	h := newHost(t, hostOptions{})
	image := h.image(t, "debian12")
	config := filepath.Join(h.Dir, "config.toml")
	containerd := filepath.Join(h.Options.ToolsDir, "containerd")
	plain, err := os.ReadFile(config)
	if err != nil {
		t.Fatal(err)
	}
	imports := bytes.Replace(plain, []byte("imports = []"), []byte("imports = [\"conf.d/*.toml\"]"), 1)
	if bytes.Equal(plain, imports) {
		t.Fatal("the configuration of the test has no line for imports")
	}
	for _, c := range []struct {
		name string
		text []byte
		// binDir is below root, which is the environment's directory or "/".
		root, binDir string
		dropIn       bool
		byName       bool
	}{
		{name: "by name, edited in place", text: plain, root: h.Dir, binDir: "/usr/local/bin", byName: true},
		{name: "by name, in a drop-in", text: imports, root: h.Dir, binDir: "/usr/local/bin", byName: true, dropIn: true},
		{name: "by path", text: plain, root: "/", binDir: filepath.Join(h.Dir, "by-path")},
	} {
		t.Run(c.name, func(t *testing.T) {
			if err := os.WriteFile(config, c.text, 0o600); err != nil {
				t.Fatal(err)
			}
			seen := config
			if c.root != "/" {
				seen = "/config.toml"
			}
			args := []string{"--root", c.root, "--bin-dir", c.binDir, "--containerd-config", seen}
			run := func(args ...string) string {
				t.Helper()
				out, err := exec.Command(ctl, args...).CombinedOutput()
				if err != nil {
					t.Fatalf("nvidia-shimctl %s: %v\n%s", strings.Join(args, " "), err, out)
				}
				return string(out)
			}
			run(append([]string{"install", "--containerd", containerd, "--set-default", "--dry-run"}, args...)...)
			if now, err := os.ReadFile(config); err != nil || !bytes.Equal(now, c.text) {
				t.Fatalf("a dry run changed the configuration: %v", err)
			}
			run(append([]string{"install", "--containerd", containerd, "--set-default"}, args...)...)
			now, err := os.ReadFile(config)
			if err != nil || bytes.Equal(now, c.text) != c.dropIn {
				t.Errorf("edited in place: %v, want %v (%v)", !bytes.Equal(now, c.text), !c.dropIn, err)
			}

			dump, err := exec.Command(containerd, "--config", config, "config", "dump").Output()
			if err != nil {
				t.Fatal(err)
			}
			got, err := runtimeclass.ParseConfiguration(dump)
			if err != nil {
				t.Fatal(err)
			}
			handler := got.Runtimes[runtimeclass.DefaultHandler]
			if !handler.Ours() || got.Default != runtimeclass.DefaultHandler || (handler.Path == "") != c.byName {
				t.Fatalf("containerd reads %+v, default %q", handler, got.Default)
			}
			runtime := handler.Path
			if c.byName {
				runtime = handler.Type
			}
			// Only the installed copy can be found.
			h.Options.ShimDir = filepath.Join(c.root, c.binDir)
			h.Restart(t)
			out := h.MustRun(t, testenv.RunOptions{
				Runtime: runtime, Image: image, Env: []string{"NVIDIA_VISIBLE_DEVICES=1"}, Args: []string{"nvidia-smi", "-L"},
			})
			if want := h.Driver.GPUs[1].UUID; !strings.Contains(out, want) || strings.Count(out, "UUID") != 1 {
				t.Errorf("got %q, want %s alone", out, want)
			}

			out = run(append([]string{"uninstall"}, args...)...)
			if now, err := os.ReadFile(config); err != nil || !bytes.Equal(now, c.text) {
				t.Errorf("uninstall did not bring the configuration back: %v\n%s", err, now)
			}
			left, err := filepath.Glob(filepath.Join(h.Dir, "config.toml?*"))
			drop, err2 := filepath.Glob(filepath.Join(h.Dir, "conf.d/*"))
			programs, err3 := filepath.Glob(filepath.Join(c.root, c.binDir, "*"))
			if left = append(append(left, drop...), programs...); err != nil || err2 != nil || err3 != nil || len(left) > 0 {
				t.Errorf("uninstall left %v\n%s", left, out)
			}
			h.Restart(t)
		})
	}
}
