package docker

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simhost"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testenv"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/runtimeclass"
)

// A systemctl that reloads Docker, which answers before it has done that.
const (
	reload   = `[ "$*" = "reload docker" ] && kill -HUP $(cat `
	reloaded = `until docker info --format '{{json .Runtimes}}' | grep -q '"nvidia"'; do sleep 0.1; done` + "\n"
)

// workstation is a host that has Docker, and nothing of this project.
func workstation(t *testing.T, tree simhost.Tree) *engine {
	t.Helper()
	e := &engine{Host: simhost.New(t, simhost.Options{Env: testenv.Options{Wrapper: tree.Enter}})}
	e.Ctr(t, "images", "tag", e.Image, e.image())
	e.Options.ShimDir = ""
	e.Restart(t)
	e.dir = e.Dir
	e.config = tree.Root + runtimeclass.DefaultDockerConfig
	e.flags = []string{"--config-file", runtimeclass.DefaultDockerConfig}
	for _, d := range []string{filepath.Dir(e.config), tree.Root + "/usr/local/sbin"} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	e.configure(t, map[string]any{})
	simhost.Script(t, tree.Root+"/usr/local/sbin/systemctl", reload+e.Dir+"/docker.pid)\n"+reloaded)
	t.Cleanup(func() { e.daemon.Stop() })
	e.startDaemon(t)
	t.Cleanup(func() { e.removeContainers(t) })
	return e
}

// A new user of a workstation types what README.md says, and then docs/docker.md.
func TestTheCommandsOfThePages(t *testing.T) {
	// install would find two daemons.
	shared.daemon.Stop()
	t.Cleanup(func() { shared.startDaemon(t) })
	tree := simhost.NewTree(t)
	e := workstation(t, tree)
	list := slices.Concat(simhost.Commands(t, "README.md", "**Docker**", "**Kubernetes**"), simhost.Commands(t, "docs/docker.md", "# Docker", "\x00"))
	count := map[string]int{}
	for _, line := range append(list, "nvidia-shimctl check --target docker", "nvidia-shimctl uninstall") {
		program := strings.Fields(line)[0]
		count[program]++
		if line == "systemctl restart docker" {
			e.restart(t)
			continue
		}
		out := tree.Type(t, append(e.environment(), "NVIDIA_SHIM_CONFIG="+e.Driver.ConfigPath), strings.ReplaceAll(line, "IMAGE", e.image()))
		if program == "docker" {
			want := 1
			if strings.Contains(line, "all") {
				want = len(e.Driver.GPUs)
			}
			if strings.Count(out, "GPU-") != want {
				t.Errorf("%s: %s", line, out)
			}
		}
	}
	if count["docker"] < 3 || count["bin/nvidia-shimctl"] < 3 || count["systemctl"] != 1 {
		t.Errorf("commands of the pages: %q", list)
	}
	if now, err := os.ReadFile(e.config); err != nil || string(now) != string(e.plain) {
		t.Errorf("uninstall left %s, %v", now, err)
	}
}
