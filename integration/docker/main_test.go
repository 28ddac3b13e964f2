package docker

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simhost"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testenv"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/version"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/runtimeclass"
)

// programs are what the tests need of bin/.
var programs = []string{
	version.Shim, version.Ctl, version.NVML, "docker/dockerd", "docker/docker-proxy",
	"docker/docker", "docker/docker-buildx", "docker/docker-compose",
}

// shared is the Docker Engine of all tests.
var shared *engine

// newHost is the host that dockerd runs on.
var newHost = func(t testing.TB) *simhost.Host { return simhost.New(t, simhost.Options{}) }

func TestMain(m *testing.M) {
	if missing := testenv.Missing(programs...); len(missing) > 0 {
		fmt.Fprintf(os.Stderr, "FAIL: the tests of this package cannot run here:\n  - %s\n", strings.Join(missing, "\n  - "))
		os.Exit(1)
	}
	life := &testenv.Lifetime{}
	life.EndOnSignal()
	code := 1
	err := life.Run(func() error {
		shared = start(life)
		if code = m.Run(); code != 0 {
			life.Log(shared.daemon.Tail(8 << 10))
		}
		return nil
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, "FAIL:", err)
		code = 1
	}
	os.Exit(code)
}

// engine is a dockerd on a simulated host, or with the tag gpu on this one.
type engine struct {
	*simhost.Host
	daemon *testenv.Command
	// config is its daemon.json; plain is the text without the runtime.
	config string
	plain  []byte
	// dir holds its files, wrapper is put before its command line, and flags are its flags.
	dir            string
	wrapper, flags []string
	// specs is where it looks for CDI specifications.
	specs string
	// life ends it.
	life testing.TB
}

// start starts dockerd with the runtime registered. Its images are those of containerd.
func start(t testing.TB) *engine {
	testenv.ShareForTest(t, sharedDirs...)
	h := newHost(t)
	e := &engine{life: t, Host: h, dir: h.Dir, config: filepath.Join(h.Dir, runtimeclass.DefaultDockerConfig), specs: filepath.Join(h.Dir, "cdi")}
	e.flags = []string{"--config-file", e.config}
	h.Ctr(t, "images", "tag", h.Image, e.image())
	plugins := filepath.Join(h.Dir, "cli", "cli-plugins")
	for _, dir := range []string{plugins, e.specs, filepath.Dir(e.config), filepath.Join(h.Dir, "path")} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"docker-buildx", "docker-compose"} {
		if err := os.Symlink(e.program(name), filepath.Join(plugins, name)); err != nil {
			t.Fatal(err)
		}
	}
	e.configure(t, map[string]any{"cdi-spec-dirs": []string{e.specs}})
	h.Ctl(t, "cdi", "--output", filepath.Join(e.specs, "nvidia.yaml"))
	// dockerd looks for this program and the link of --gpus-flag when it starts, and never runs them.
	if err := os.Symlink("/bin/false", filepath.Join(h.Dir, "path", runtimeclass.RuntimeHookName)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { e.uninstall(t) })
	e.install(t)
	t.Cleanup(func() { e.daemon.Stop() })
	e.startDaemon(t)
	t.Cleanup(func() { e.removeContainers(t) })
	// The driver's view stays until the end.
	e.docker(t, append(append(e.run("--rm"), visible("0")...), e.image(), "true")...)
	return e
}

// configure writes daemon.json.
func (e *engine) configure(t testing.TB, settings map[string]any) {
	t.Helper()
	in := func(name string) string { return filepath.Join(e.dir, name) }
	all := map[string]any{
		"data-root": in("docker"), "exec-root": in("exec"), "pidfile": in("docker.pid"),
		"hosts": []string{e.socket()}, "containerd": e.Address, "containerd-namespace": e.ID, "cgroup-parent": "/" + e.ID,
		"bridge": "none", "iptables": false, "ip6tables": false, "ip-forward": false, "live-restore": true,
	}
	maps.Copy(all, settings)
	text, err := json.MarshalIndent(all, "", "\t")
	if err != nil {
		t.Fatal(err)
	}
	e.plain = text
	simhost.WriteFile(t, e.config, string(text))
}

// sharedDirs are those that dockerd, BuildKit's runc and kind use outside their own.
var sharedDirs = []string{"/run/docker", "/run/docker/plugins", "/run/runc", "/lib/modules"}

// image is the name by which Docker knows the image.
func (e *engine) image() string { return "docker.io/" + e.Image }

func (e *engine) program(name string) string { return filepath.Join(testenv.ShimDir(), "docker", name) }

// hook is the link of --gpus-flag.
func (e *engine) hook() string {
	return filepath.Join(e.Dir, "usr/local/bin", runtimeclass.CDIHookName)
}

func (e *engine) socket() string { return "unix://" + filepath.Join(e.dir, "d.sock") }

// environment is that of dockerd and of the docker command.
func (e *engine) environment() []string {
	path := []string{filepath.Join(e.Dir, "path"), filepath.Dir(e.hook()), filepath.Dir(e.program("docker")), e.Options.ToolsDir, "/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"}
	return []string{"PATH=" + strings.Join(path, ":"), "HOME=" + e.Dir, "TMPDIR=" + e.Dir,
		"DOCKER_HOST=" + e.socket(), "DOCKER_CONFIG=" + filepath.Join(e.Dir, "cli")}
}

func (e *engine) startDaemon(t testing.TB) {
	t.Helper()
	e.daemon = &testenv.Command{
		Name: "dockerd", Argv: slices.Concat(e.Options.Wrapper, e.wrapper, []string{e.program("dockerd")}, e.flags),
		Dir: e.Dir, Env: e.environment(), Log: filepath.Join(e.dir, "dockerd.log"),
	}
	if err := e.daemon.Start(); err != nil {
		t.Fatal(err)
	}
	var last testenv.Result
	if !testenv.Until(func() bool {
		last = e.try(t, nil, "version")
		return last.ExitCode == 0 || e.daemon.Ended() != nil
	}) || e.daemon.Ended() != nil {
		t.Fatalf("dockerd does not answer: %s\n%s", last.Error, e.daemon.Tail(8<<10))
	}
}

// reload makes dockerd read its configuration again, as `systemctl reload docker` does.
func (e *engine) reload(t testing.TB) {
	t.Helper()
	if err := syscall.Kill(e.daemon.PID(), syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
}

// restart is `systemctl restart docker`.
func (e *engine) restart(t testing.TB) {
	t.Helper()
	e.daemon.Stop()
	e.startDaemon(t)
}

func (e *engine) defaultRuntime(t testing.TB) string {
	t.Helper()
	return strings.TrimSpace(e.docker(t, "info", "--format", "{{.DefaultRuntime}}"))
}

// try runs the docker command to its end; env is added to its environment.
func (e *engine) try(t testing.TB, env []string, args ...string) testenv.Result {
	t.Helper()
	cmd := exec.Command(e.program("docker"), args...)
	cmd.Dir, cmd.Env = e.Dir, append(e.environment(), env...)
	r, err := testenv.Output(2*time.Minute, cmd)
	if err != nil {
		t.Fatalf("docker %s: %v\n%s%s", strings.Join(args, " "), err, r.Output, r.Error)
	}
	return r
}

// docker runs the docker command, which must succeed, and returns what it prints.
func (e *engine) docker(t testing.TB, args ...string) string {
	t.Helper()
	r := e.try(t, nil, args...)
	if r.ExitCode != 0 {
		t.Fatalf("docker %s: exit status %d\n%s%s", strings.Join(args, " "), r.ExitCode, r.Output, r.Error)
	}
	return r.Output
}

// run are the arguments of `docker run` without a network.
func (e *engine) run(args ...string) []string {
	return append([]string{"run", "--network", "none", "--pull", "never"}, args...)
}

// removeContainers removes every container.
func (e *engine) removeContainers(t testing.TB) {
	t.Helper()
	if ids := strings.Fields(e.docker(t, "ps", "--all", "--quiet")); len(ids) > 0 {
		e.docker(t, append([]string{"rm", "--force", "--volumes"}, ids...)...)
	}
}

// install registers the runtime in the tree of the environment.
func (e *engine) install(t testing.TB, more ...string) {
	t.Helper()
	e.shimctl(t, append([]string{"install", "--gpus-flag", "--from", testenv.ShimDir()}, more...)...)
}

// uninstall restores daemon.json.
func (e *engine) uninstall(t testing.TB) {
	t.Helper()
	e.shimctl(t, "uninstall")
	if now, err := os.ReadFile(e.config); err != nil || string(now) != string(e.plain) {
		t.Errorf("uninstall did not bring the configuration back: %v\n%s", err, now)
	}
}

func (e *engine) shimctl(t testing.TB, args ...string) {
	t.Helper()
	args = append(args, "--target", "docker", "--root", e.Dir)
	if out, err := exec.Command(filepath.Join(testenv.ShimDir(), version.Ctl), args...).CombinedOutput(); err != nil {
		t.Fatalf("nvidia-shimctl %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}
