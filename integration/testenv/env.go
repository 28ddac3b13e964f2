package testenv

import (
	"bytes"
	"cmp"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testenv/mounts"
)

// prefix starts the identifier of every environment, so that environments of
// other test processes can be recognised and left alone.
const prefix = "nse-"

// Snapshotter is the snapshotter that containers use.
const Snapshotter = "overlayfs"

// maxSocketPath is the longest path of a unix socket, without the final zero.
const maxSocketPath = 107

// Options says how an environment's containerd is run. The zero value is a
// containerd with the host's own cgroup version and the stock shim.
type Options struct {
	// Cgroup is 1 for the host's v1 hierarchies or 2 for cgroup v2; see
	// CgroupVersions. 0 means the first that is possible.
	Cgroup int
	// ShimConfig, when set, is NVIDIA_SHIM_CONFIG in containerd's environment.
	ShimConfig string
	// Env is added to containerd's environment, which otherwise holds PATH only.
	Env []string
	// ShimDir, when set, comes first in containerd's PATH, before ToolsDir.
	ShimDir string
	// ToolsDir holds containerd, ctr, the stock shim and runc; default ToolsDir().
	ToolsDir string
	// DaemonDir, when set, holds containerd and ctr of another release. It comes
	// before ToolsDir in containerd's PATH. A test may change it in Env.Options
	// before Restart: the daemon is then replaced while containers run.
	DaemonDir string
	// ConfigVersion is that of config.toml: 3, or 2 for containerd before 2.0.
	// Default 3.
	ConfigVersion int
	// SocketDir is where the sockets of shims are with containerd since 2.3, below
	// Env.Dir by default. Releases before have them in /run/containerd/s.
	SocketDir string
	// CRI leaves Kubernetes' plugins enabled; Config says how they work.
	CRI bool
	// Config is appended to containerd's config.toml.
	Config string
	// Wrapper, when set, is put before containerd's command line; it must exec it
	// in place, so that the process keeps its id.
	Wrapper []string
}

// Env is one running containerd and what belongs to it.
type Env struct {
	// ID names this environment: the base of Dir, the containerd namespace, and
	// the cgroup below which its containers live.
	ID string
	// Dir holds all files of the environment. Tests may keep their own in it.
	Dir string
	// Address is containerd's socket.
	Address string
	// Root and State are containerd's directories of these names.
	Root, State string
	// Image is the reference of the default image of containers.
	Image string
	// Options are those it was started with, defaults filled in.
	Options Options

	logPath string
	mu      sync.Mutex // guards daemon, across Restart
	daemon  *Command
	nextID  atomic.Int64
	stopped bool
}

// live holds the running environments of this test process, by ID; known holds all that it has
// started.
var live, known sync.Map

// Start runs a containerd of the test's own and waits until it answers. The
// test's cleanup stops it and removes everything that belongs to it.
func Start(t testing.TB, o Options) *Env {
	t.Helper()
	o, err := o.withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	e, err := newEnv(os.TempDir(), prefix, o)
	if err != nil {
		t.Fatal(err)
	}
	known.Store(e.ID, e)
	live.Store(e.ID, e)
	t.Cleanup(func() { e.Stop(t) })
	if err := e.startDaemon(); err != nil {
		t.Fatalf("start containerd: %v\n%s", err, e.Log())
	}
	return e
}

func (o Options) withDefaults() (Options, error) {
	possible := CgroupVersions()
	if o.Cgroup == 0 && len(possible) > 0 {
		o.Cgroup = possible[0]
	}
	if !slices.Contains(possible, o.Cgroup) {
		return o, fmt.Errorf("cgroup v%d is not possible on this host, only %v", o.Cgroup, possible)
	}
	if o.ToolsDir == "" {
		dir, err := ToolsDir()
		if err != nil {
			return o, err
		}
		o.ToolsDir = dir
	}
	missing := lacking(o.ToolsDir, Tools)
	if o.DaemonDir != "" {
		missing = append(missing, lacking(o.DaemonDir, []string{"containerd", "ctr"})...)
	}
	if len(missing) > 0 {
		return o, errors.New(strings.Join(missing, "; "))
	}
	o.ConfigVersion = cmp.Or(o.ConfigVersion, 3)
	return o, nil
}

// daemonDir is where containerd and ctr are.
func (o Options) daemonDir() string { return cmp.Or(o.DaemonDir, o.ToolsDir) }

// newEnv makes the directory, in parent, and the configuration of an environment whose ID starts
// with kind.
func newEnv(parent, kind string, o Options) (*Env, error) {
	random := make([]byte, 4)
	if _, err := rand.Read(random); err != nil {
		return nil, err
	}
	id := kind + hex.EncodeToString(random)
	// The directory is short because shims refuse socket directories of more than 42 bytes; so a
	// long parent is replaced by /tmp.
	if len(filepath.Join(parent, id, "s")) > 42 {
		parent = "/tmp"
	}
	dir := filepath.Join(parent, id)
	if err := os.Mkdir(dir, 0o711); err != nil {
		return nil, fmt.Errorf("make the environment's directory: %w", err)
	}
	o.SocketDir = cmp.Or(o.SocketDir, filepath.Join(dir, "s"))
	e := &Env{
		ID: id, Dir: dir, Options: o,
		Address: filepath.Join(dir, "c.sock"),
		Root:    filepath.Join(dir, "root"),
		State:   filepath.Join(dir, "state"),
		logPath: filepath.Join(dir, "containerd.log"),
	}
	if len(e.Address)+len(".ttrpc") > maxSocketPath {
		return nil, fmt.Errorf("socket path %q is too long", e.Address)
	}
	if err := os.WriteFile(e.configPath(), []byte(e.config()), 0o600); err != nil {
		return nil, err
	}
	return e, nil
}

func (e *Env) configPath() string { return filepath.Join(e.Dir, "config.toml") }

// config is containerd's configuration: every path below Dir, and no plugin that
// would look elsewhere on the host.
func (e *Env) config() string {
	cri := `  "io.containerd.grpc.v1.cri",
  "io.containerd.cri.v1.images",
  "io.containerd.cri.v1.runtime",
  "io.containerd.podsandbox.controller.v1.podsandbox",
  "io.containerd.nri.v1.nri",
`
	if e.Options.CRI {
		cri = ""
	}
	// No test needs data to survive a power failure. containerd 1 does not know the option.
	database := "[plugins.\"io.containerd.metadata.v1.bolt\"]\n  no_sync = true\n"
	if e.Options.ConfigVersion < 3 {
		database = ""
	}
	return fmt.Sprintf(`version = %[10]d
root = %[1]q
state = %[2]q
temp = %[3]q
imports = []
disabled_plugins = [
%[11]s  "io.containerd.snapshotter.v1.blockfile",
  "io.containerd.snapshotter.v1.devmapper",
  "io.containerd.snapshotter.v1.erofs",
  "io.containerd.tracing.processor.v1.otlp",
  "io.containerd.internal.v1.tracing",
]

[grpc]
  address = %[4]q

[ttrpc]
  address = %[5]q

[debug]
  level = "info"

[plugins."io.containerd.internal.v1.opt"]
  path = %[6]q

[plugins."io.containerd.image-verifier.v1.bindir"]
  bin_dir = %[7]q

[plugins."io.containerd.shim.v1.manager"]
  socket_dir = %[8]q

%[12]s
%[9]s
`, e.Root, e.State, filepath.Join(e.Dir, "temp"), e.Address, e.Address+".ttrpc",
		filepath.Join(e.Dir, "opt"), filepath.Join(e.Dir, "verifier"), e.Options.SocketDir, e.Options.Config,
		e.Options.ConfigVersion, cri, database)
}

// cgroup2Script makes the calling mount namespace one with pure cgroup v2 and
// then becomes the command in its arguments.
const cgroup2Script = `umount -R /sys/fs/cgroup && mount -t cgroup2 none /sys/fs/cgroup && exec "$@"`

// private reports whether containerd has a mount namespace of its own, because
// the host's cgroups are v1.
func (e *Env) private() bool { return e.Options.Cgroup == 2 && CgroupVersions()[0] == 1 }

// startDaemon starts containerd and waits until it answers.
func (e *Env) startDaemon() error {
	argv := append([]string{}, e.Options.Wrapper...)
	argv = append(argv, filepath.Join(e.Options.daemonDir(), "containerd"), "--config", e.configPath())
	if e.private() {
		argv = append([]string{"/bin/sh", "-c", cgroup2Script, "sh"}, argv...)
	}
	d := &Command{Name: "containerd", Argv: argv, Dir: e.Dir, Env: e.environment(), Log: e.logPath}
	if e.private() {
		// The os package makes all mounts of the new namespace private.
		d.Attributes.Unshareflags = syscall.CLONE_NEWNS
	}
	if err := d.Start(); err != nil {
		return err
	}
	e.mu.Lock()
	e.daemon = d
	e.mu.Unlock()
	return e.waitReady(d)
}

// environment is containerd's environment. It is made from nothing, so that variables of the
// developer's shell do not affect a test.
func (e *Env) environment() []string {
	path := []string{e.Options.daemonDir(), e.Options.ToolsDir, "/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"}
	if e.Options.ShimDir != "" {
		path = append([]string{e.Options.ShimDir}, path...)
	}
	env := []string{"PATH=" + strings.Join(path, ":"), "TMPDIR=" + e.Dir}
	if e.Options.ShimConfig != "" {
		env = append(env, "NVIDIA_SHIM_CONFIG="+e.Options.ShimConfig)
	}
	return append(env, e.Options.Env...)
}

// waitReady returns when containerd answers, has ended, or takes too long.
func (e *Env) waitReady(d *Command) error {
	var last []byte
	ready := Until(func() bool {
		if d.Ended() != nil {
			return true
		}
		if _, err := os.Stat(e.Address); err != nil {
			return false
		}
		var err error
		last, err = e.CtrCommand("--connect-timeout", "2s", "version").CombinedOutput()
		return err == nil
	})
	if err := d.Ended(); err != nil {
		return err
	}
	if !ready {
		return fmt.Errorf("containerd did not answer within %v: %s", waitLimit, bytes.TrimSpace(last))
	}
	return nil
}

// PID is containerd's process. Its mount namespace is where the environment's
// mounts are: /proc/<PID>/mountinfo, /proc/<PID>/root.
func (e *Env) PID() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.daemon == nil {
		return 0
	}
	return e.daemon.PID()
}

// Restart ends containerd (its containers continue) and starts it again.
func (e *Env) Restart(t testing.TB) {
	t.Helper()
	e.stopDaemon()
	if err := e.startDaemon(); err != nil {
		t.Fatalf("restart containerd: %v\n%s", err, e.Log())
	}
}

// Log is what containerd and its shims have logged so far.
func (e *Env) Log() string {
	data, err := os.ReadFile(e.logPath)
	if err != nil {
		return err.Error()
	}
	return string(data)
}

// BundleDir is the directory of a running container's bundle (config.json and
// what shims put beside it).
func (e *Env) BundleDir(id string) string {
	return filepath.Join(e.State, "io.containerd.runtime.v2.task", e.ID, id)
}

// stopDaemon ends containerd and waits for it.
func (e *Env) stopDaemon() {
	e.mu.Lock()
	d := e.daemon
	e.daemon = nil
	e.mu.Unlock()
	if d != nil {
		d.Stop()
	}
}

// Stop ends containerd and every process of the environment, unmounts what is below its directory,
// and removes its cgroups and files. Start registers it as the test's cleanup; calling it earlier
// is allowed. If the test has failed, the end of containerd's log is logged.
func (e *Env) Stop(t testing.TB) {
	t.Helper()
	e.mu.Lock()
	stopped := e.stopped
	e.stopped = true
	e.mu.Unlock()
	if stopped {
		return
	}
	defer live.Delete(e.ID)
	if t.Failed() {
		t.Logf("containerd's log:\n%s", regexp.MustCompile(`(?m)^.*loading plugin.*\n`).ReplaceAllString(e.Log(), ""))
	}
	e.stopDaemon()
	if err := e.killProcesses(); err != nil {
		t.Error(err)
	}
	if err := e.removeCgroups(); err != nil {
		t.Error(err)
	}
	if err := mounts.Unmount(e.Dir); err != nil {
		t.Error(err)
		return // removing files below a mount would remove someone else's
	}
	// The stock shim's default runc root; only the environment's own part of it.
	if err := os.Remove(filepath.Join(runcRoot, e.ID)); err != nil && !os.IsNotExist(err) {
		t.Logf("runc left state behind: %v", err)
		if err := os.RemoveAll(filepath.Join(runcRoot, e.ID)); err != nil {
			t.Error(err)
		}
	}
	if err := os.RemoveAll(e.Dir); err != nil {
		t.Error(err)
	}
}

// runcRoot is where the stock shim keeps runc's state unless told otherwise.
const runcRoot = "/run/containerd/runc"
