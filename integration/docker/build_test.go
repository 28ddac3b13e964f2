package docker

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simhost"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testenv"
)

// built is the name of the image that a test builds.
const built = "built:latest"

// build builds an image from the shared one and returns the file /seen in it.
func (e *engine) build(t *testing.T, env []string, run string, flags ...string) string {
	t.Helper()
	dir := t.TempDir()
	text := fmt.Sprintf("FROM %s\nENV NVIDIA_VISIBLE_DEVICES=all\n%s\n", e.image(), run)
	if err := os.WriteFile(filepath.Join(dir, "Dockerfile"), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	r := e.try(t, env, append(append([]string{"build", "--network", "none", "--no-cache", "--tag", built}, flags...), dir)...)
	if r.ExitCode != 0 {
		t.Fatalf("docker build: exit status %d\n%s%s", r.ExitCode, r.Output, r.Error)
	}
	defer e.docker(t, "rmi", built)
	return e.docker(t, append(e.run("--rm", "--runtime", "runc"), built, "cat", "/seen")...)
}

// seen is a command for build.
const seen = "{ nvidia-smi -L; ls /dev; } >/seen 2>&1 || true"

// BuildKit keeps its parent cgroup until dockerd ends.
const buildkit = "/buildkit"

// A reload makes our runtime Docker's default. The classic builder uses it; BuildKit runs runc.
// After uninstall dockerd has to start again: a reload takes no runtime away (moby's
// reloadPlatform).
func TestTheRuntimeIsTheDefault(t *testing.T) {
	unchanged(t, buildkit)
	shared.install(t, "--set-default")
	shared.install(t) // an upgrade
	shared.reload(t)
	testenv.Await(t, "the default runtime is nvidia", func() bool { return shared.defaultRuntime(t) == "nvidia" })
	check(t, shared.probe(t, []string{"--env", "NVIDIA_VISIBLE_DEVICES=1"}, shared.image()), 1)
	check(t, shared.probe(t, []string{"--runtime", "runc", "--env", "NVIDIA_VISIBLE_DEVICES=1"}, shared.image()))
	t.Run("classic builder", func(t *testing.T) {
		out := shared.build(t, []string{"DOCKER_BUILDKIT=0"}, "RUN "+seen)
		for _, g := range shared.Driver.GPUs {
			simhost.Want(t, out, g.UUID)
		}
	})
	t.Run("BuildKit", func(t *testing.T) {
		if out := shared.build(t, nil, "RUN "+seen); strings.Contains(out, "nvidia0") || strings.Contains(out, "GPU-") {
			t.Errorf("the build sees a GPU: %s", out)
		}
	})
	t.Run("uninstall and restart", func(t *testing.T) {
		shared.uninstall(t)
		shared.restart(t)
		if got := shared.defaultRuntime(t); got != "runc" {
			t.Errorf("the default runtime is %q", got)
		}
		check(t, shared.probe(t, []string{"--env", "NVIDIA_VISIBLE_DEVICES=1"}, shared.image()))
		shared.install(t)
		t.Cleanup(func() { shared.restart(t) }) // for the link of --gpus-flag
		shared.reload(t)
		testenv.Await(t, "the runtime is registered again", func() bool {
			return strings.Contains(shared.docker(t, "info", "--format", "{{json .Runtimes}}"), `"nvidia":`)
		})
	})
}
