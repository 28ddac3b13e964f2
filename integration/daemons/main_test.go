package daemons

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simhost"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testenv"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/runtimeclass"
)

// release is a release of containerd that is in use.
type release struct {
	name string
	// dir is where build.sh put it, below bin/daemons; empty for the containerd of
	// `make tools`.
	dir string
	// config is the version of its config.toml.
	config int
	// pathRuntime is true if ctr accepts the path of a shim for --runtime, as since 1.6.21
	// (containerd pull request 8209).
	pathRuntime bool
	// runtimePath is true if CRI starts sandboxes by the handler's runtime_path too, and not only
	// by a shim with the runtime's name (containerd issue 8207).
	runtimePath bool
	// table is true if CRI sends the options table of a handler whose type is not runc's;
	// containerd 1.6 sends its TypeUrl and ConfigPath only.
	table bool
	// features is true if CRI reports the features of handlers.
	features bool
	// bootstrap is true if it speaks the protocol of 2.3.
	bootstrap bool
}

// The rows are in the order of their age.
var releases = []release{
	{name: "Debian's 1.6.20", dir: "debian", config: 2},
	{name: "1.7.36", dir: "containerd-1.7", config: 2, pathRuntime: true, runtimePath: true, table: true},
	{name: "2.2.9", dir: "containerd-2.2", config: 3, pathRuntime: true, runtimePath: true, table: true, features: true},
	{name: "2.3.7", dir: "containerd-2.3", config: 3, pathRuntime: true, runtimePath: true, table: true, features: true, bootstrap: true},
	{name: "2.4.2", config: 3, pathRuntime: true, runtimePath: true, table: true, features: true, bootstrap: true},
}

func (r release) daemonDir() string {
	if r.dir == "" {
		return ""
	}
	return filepath.Join(testenv.ShimDir(), "daemons", r.dir)
}

// debianMissing says why Debian's containerd cannot be tested here, "" if it can.
func debianMissing() string {
	dir := releases[0].daemonDir()
	for name, flag := range map[string]string{"containerd": "--version", "ctr": "--version", "runc": "--version", stockShim: "-v"} {
		if err := exec.Command(filepath.Join(dir, name), flag).Run(); err != nil {
			return fmt.Sprintf("%s: %v (build.sh unpacks Debian's packages where apt-get has them; runc needs libseccomp2)", filepath.Join(dir, name), err)
		}
	}
	return ""
}

func TestMain(m *testing.M) {
	programs := slices.Clone(runtimeclass.Programs)
	for _, r := range releases {
		if r.dir != "" && r.dir != "debian" {
			dir := filepath.Join("daemons", r.dir)
			programs = append(programs, filepath.Join(dir, "containerd"), filepath.Join(dir, "ctr"), filepath.Join(dir, stockShim))
		}
	}
	testenv.Main(m, programs...)
}

// eachRelease runs test once for each containerd, and logs the one that is not here.
func eachRelease(t *testing.T, test func(t *testing.T, r release)) {
	t.Helper()
	for _, r := range releases {
		if r.dir == "debian" {
			if missing := debianMissing(); missing != "" {
				t.Logf("NOT TESTED with %s: %s", r.name, missing)
				continue
			}
		}
		t.Run("containerd "+r.name, func(t *testing.T) { test(t, r) })
	}
}

// stockShim starts pods without a handler.
const stockShim = "containerd-shim-runc-v2"

// host is a simulated host with one release of containerd.
type host struct {
	*simhost.Host
	// RunDir holds what is /run/containerd to this containerd and its shims: daemons
	// before 2.3 cannot be told another place for sockets, and runc's state is there too.
	RunDir string
}

// newHost starts a containerd. When the test ends it is gone, and the host as it was
// before.
func newHost(t *testing.T, r release, o testenv.Options) *host {
	t.Helper()
	run := filepath.Join(tempDir(t), "run")
	o.DaemonDir, o.ConfigVersion = r.daemonDir(), r.config
	o.Wrapper, o.SocketDir = privateRun(t, run), "/run/containerd/s"
	return &host{Host: simhost.New(t, simhost.Options{Env: o}), RunDir: run}
}

// check compares what a container that printed out sees with what belongs to a GPU.
func (h *host) check(t *testing.T, out string, gpu int) {
	t.Helper()
	simhost.Compare(t, simhost.Parse(out), h.Expect([]int{gpu}))
}

// tempDir is short, and below a directory that only root can write.
func tempDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "nvd")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// privateRun makes a mount namespace in which /run/containerd is dir, and returns
// the command that runs another one in it. The namespace outlives a containerd, as
// a host does.
func privateRun(t *testing.T, dir string) []string {
	t.Helper()
	if err := os.Mkdir(dir, 0o711); err != nil {
		t.Fatal(err)
	}
	return simhost.NewNamespace(t, "mkdir -p /run/containerd\nmount --bind $1 /run/containerd", dir).Enter
}

// gpu is the environment that asks for the GPU with this index.
func gpu(index int) []string { return []string{fmt.Sprintf("NVIDIA_VISIBLE_DEVICES=%d", index)} }
