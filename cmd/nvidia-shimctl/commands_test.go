package main

import (
	"bytes"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testtree"
)

// A command that prints data prints it as JSON on request, any other refuses --json. A command that
// needs root says so first.
func TestEveryCommandPrintsJSONAndSaysIfItNeedsRoot(t *testing.T) {
	d := simulate(t)
	state := record(t, d)
	root, _, from := installTree(t, "", containerdTOML)
	const none = "" // text for another program, or nothing
	ran := map[string]bool{}
	testtree.Check(t, os.Chmod(filepath.Dir(root), 0o755))
	for _, tc := range []struct{ args, key, user string }{
		{"info", "gpus", "not run as root"},
		{"status --state " + state, "containers", "run status as root"},
		{"serve --listen 3476", none, "run serve as root"},
		{"plan --env NVIDIA_VISIBLE_DEVICES=0", "devices", "not run as root"},
		{"run-args --for ctr --devices 0", "args", "not run as root"},
		{"suspend x", none, "run suspend as root"},
		{"resume x", none, "run resume as root"},
		{"limit x 6Gi", none, "run limit as root"},
		{"cdi", "cdiVersion", "not run as root"},
		{"check", "findings", "not run as root"},
		{"prepare --dry-run", "nodes", "not run as root"},
		{"install --root " + root + " --from " + from, "written", "run it as root"},
		{"uninstall --root " + root, "removed", "run it as root"},
		{"node --once --host-root /nonexistent", none, "only root can install a node"},
		{"manifest", "kind", ""},
		{"probe", "facts", "not run as root"},
		{"bundle --output " + filepath.Join(t.TempDir(), "report.tar.gz"), "contents", "run bundle as root"},
		{"man", none, ""},
		{"completion bash", none, ""},
		{"completion zsh", none, ""},
		{"version", "revision", ""},
		{"help", none, ""},
	} {
		command := strings.Fields(tc.args)
		args := append([]string{"--config", d.ConfigPath, "--json"}, command...)
		ran[command[0]] = true
		if tc.key == none {
			code, out, errs := ctl(t, args...)
			if want := "nvidia-shimctl: --json cannot be combined with " + command[0] + " ("; code != 2 || out != "" || !strings.HasPrefix(errs, want) {
				t.Errorf("--json %s: status %d, %s%s", tc.args, code, out, errs)
			}
			args = append(args[:2], command...)
		} else {
			_, out, _ := ctl(t, args...)
			var v map[string]any
			if err := json.Unmarshal([]byte(out), &v); err != nil || v[tc.key] == nil {
				t.Errorf("--json %s: %v, no %q in %s", tc.args, err, tc.key, out)
			}
		}
		testtree.Check(t, syscall.Seteuid(65534))
		_, _, errs := ctl(t, args...)
		testtree.Check(t, syscall.Seteuid(0))
		if !strings.HasPrefix(errs, "nvidia-shimctl: ") && tc.user != "" || !strings.Contains(errs, tc.user) || strings.Count(errs, "\n") > 1 {
			t.Errorf("as another user %s says %q, want %q", tc.args, errs, tc.user)
		}
		// An empty --config must not mean the file of the environment in one step and the default
		// in another.
		t.Setenv(config.EnvFile, d.ConfigPath)
		var stdout, stderr bytes.Buffer
		if code := run(t.Context(), append([]string{"nvidia-shimctl", "--config", ""}, command...), &stdout, &stderr); code != 2 || stdout.Len() > 0 || !strings.HasPrefix(stderr.String(), "nvidia-shimctl: --config is empty (") {
			t.Errorf("--config \"\" %s: status %d, %s%s", tc.args, code, &stdout, &stderr)
		}
	}
	for _, c := range newApp(io.Discard, io.Discard).Commands {
		if !ran[c.Name] {
			t.Errorf("%s is not here", c.Name)
		}
	}
}
