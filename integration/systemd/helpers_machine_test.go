package systemd

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/images"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simdriver/sim"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testenv"
)

func TestMain(m *testing.M) {
	if os.Args[0] == bootName {
		bootMain()
	}
	testenv.Main(m, "containerd-shim-nvidia-v2", "nvidia-shimctl")
}

// Where things are in a machine.
const (
	inBin        = "/srv/bin"        // bin/ of the repository
	inDriver     = "/srv/driver"     // the simulated driver
	inContainerd = "/srv/containerd" // containerd's root, not on overlayfs
	inCrun       = "/srv/crun"       // see writeCrun
	inConfig     = "/etc/nvidia-shim/config.toml"
)

const (
	// namespace is that of ctr and of the Task API.
	namespace = "default"
	// imageName is small and has what a probe needs: a shell, glibc, the programs.
	imageName = "glibc-nocache"
	gpuCount  = 3
)

// machine is systemd in namespaces of the test's own, with containerd as a service.
type machine struct {
	Driver *sim.Driver

	dir    string // of the host, holds everything
	cgroup string // the machine's root cgroup, as the host sees it
	cmd    *exec.Cmd
	nextID int
}

// startMachine boots a machine and waits until systemd says that it is running. It
// is gone when the test ends.
func startMachine(t *testing.T) *machine {
	t.Helper()
	before := testenv.Snapshot(t)
	t.Cleanup(func() { before.AssertUnchanged(t) })
	tree := debianTree(t)
	if _, err := lookTool("nsenter"); err != nil {
		t.Fatal(err)
	}
	m := &machine{dir: machineDir(t)}
	t.Cleanup(func() {
		if err := os.RemoveAll(m.dir); err != nil {
			t.Error(err)
		}
	})
	driver, err := sim.Create(context.Background(), sim.Options{Dir: filepath.Join(m.dir, "driver"), GPUs: gpuCount})
	if err != nil {
		t.Fatal(err)
	}
	m.Driver = driver
	m.makeCgroup(t)
	m.boot(t, tree)
	m.waitRunning(t)
	m.importImage(t)
	return m
}

// machineDir makes the directory that all of a machine's files are in. Its name has
// the form of package testenv's environments, so that tests of other processes
// leave it, and the cgroup of the same name, out of what they compare.
func machineDir(t *testing.T) string {
	t.Helper()
	random := make([]byte, 4)
	if _, err := rand.Read(random); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(os.TempDir(), "nse-"+hex.EncodeToString(random))
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	return dir
}

// makeCgroup makes the machine's cgroup below the test's own, in the cgroup2
// hierarchy that every host has, beside those of version 1 or alone.
func (m *machine) makeCgroup(t *testing.T) {
	t.Helper()
	parent, err := ownCgroup2()
	if err != nil {
		t.Fatal(err)
	}
	m.cgroup = filepath.Join(parent, filepath.Base(m.dir))
	if err := os.Mkdir(m.cgroup, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := testenv.RemoveCgroup(m.cgroup); err != nil {
			t.Error(err)
		}
	})
}

// ownCgroup2 is this process's directory in the cgroup2 hierarchy.
func ownCgroup2() (string, error) {
	own, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(own)) {
		path, ok := strings.CutPrefix(strings.TrimSpace(line), "0::")
		if !ok {
			continue
		}
		for _, mountPoint := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"} {
			var st unix.Statfs_t
			dir := filepath.Join(mountPoint, path)
			if unix.Statfs(dir, &st) == nil && st.Type == unix.CGROUP2_SUPER_MAGIC {
				return dir, nil
			}
		}
	}
	return "", errors.New("no cgroup2 hierarchy with this process's cgroup at /sys/fs/cgroup or /sys/fs/cgroup/unified: mount one")
}

// boot starts systemd as the first process of new namespaces.
func (m *machine) boot(t *testing.T, tree string) {
	t.Helper()
	at := func(name string) string { return filepath.Join(m.dir, name) }
	for _, name := range []string{"upper", "work", "root", "containerd"} {
		if err := os.Mkdir(at(name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	m.writeFiles(t)
	writeCrun(t, at("crun"), inCrun, "/usr/bin/crun")
	plan, err := json.Marshal(bootPlan{
		Lower: tree, Upper: at("upper"), Work: at("work"), Root: at("root"), Hostname: "machine",
		Binds: []bind{
			{Source: testenv.ShimDir(), Target: inBin, ReadOnly: true},
			{Source: m.Driver.Dir, Target: inDriver},
			{Source: at("containerd"), Target: inContainerd},
			{Source: at("crun"), Target: inCrun},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	cgroup, err := os.Open(m.cgroup)
	if err != nil {
		t.Fatal(err)
	}
	defer cgroup.Close()
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer read.Close()
	m.cmd = &exec.Cmd{
		Path: "/proc/self/exe", Args: []string{bootName, string(plan)}, Dir: "/", Env: []string{}, ExtraFiles: []*os.File{write},
		SysProcAttr: &syscall.SysProcAttr{
			Cloneflags:  syscall.CLONE_NEWNS | syscall.CLONE_NEWPID | syscall.CLONE_NEWUTS | syscall.CLONE_NEWIPC,
			UseCgroupFD: true, CgroupFD: int(cgroup.Fd()),
			// A test that is killed takes the machine with it.
			Setsid: true, Pdeathsig: syscall.SIGKILL,
		},
	}
	if err := m.start(); err != nil {
		write.Close()
		t.Fatalf("start a process in new namespaces: %v", err)
	}
	t.Cleanup(m.kill)
	write.Close()
	if message, err := io.ReadAll(read); err != nil || len(message) > 0 {
		t.Fatalf("boot: %s%v", message, err)
	}
}

// start runs the first process. The signal that ends it with the test follows the
// thread that forked, which therefore lasts.
func (m *machine) start() error {
	started := make(chan error)
	go func() {
		runtime.LockOSThread()
		started <- m.cmd.Start()
		select {}
	}()
	return <-started
}

// kill ends the first process, and with it every process of the machine.
func (m *machine) kill() {
	_ = m.cmd.Process.Kill()
	_ = m.cmd.Wait()
}

// masked are the units of Debian that have nothing to do here.
var masked = []string{
	"systemd-journald-audit.socket", "systemd-sysctl.service", "systemd-modules-load.service", "systemd-random-seed.service",
	"systemd-networkd.service", "systemd-networkd.socket", "systemd-resolved.service", "systemd-timesyncd.service",
	"console-getty.service", "getty@.service", "getty.target", "dev-hugepages.mount",
	"apt-daily.timer", "apt-daily-upgrade.timer", "dpkg-db-backup.timer", "fstrim.timer",
}

// writeFiles writes what the machine has on top of the Debian tree.
func (m *machine) writeFiles(t *testing.T) {
	t.Helper()
	config, err := os.ReadFile(m.Driver.ConfigPath)
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{
		// Without an identity systemd would take this for a first boot.
		"/etc/machine-id":                        strings.Repeat(strings.TrimPrefix(filepath.Base(m.dir), "nse-"), 4) + "\n",
		inConfig:                                 strings.ReplaceAll(string(config), m.Driver.Dir, inDriver),
		"/etc/systemd/journald.conf.d/test.conf": "[Journal]\nStorage=volatile\nAudit=no\nReadKMsg=no\n",
		"/etc/containerd/config.toml":            containerdConfig,
		"/etc/systemd/system/containerd.service": fmt.Sprintf(containerdUnit, inBin, systemPath, inConfig),
	}
	for name, content := range files {
		name = filepath.Join(m.dir, "upper", name)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	units := filepath.Join(m.dir, "upper/etc/systemd/system")
	links := map[string]string{"multi-user.target.wants/containerd.service": "../containerd.service", "default.target": "/lib/systemd/system/multi-user.target"}
	for _, unit := range masked {
		links[unit] = "/dev/null"
	}
	for name, target := range links {
		name = filepath.Join(units, name)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(target, name); err != nil {
			t.Fatal(err)
		}
	}
}

const containerdConfig = `version = 3
root = "` + inContainerd + `"
imports = []
disabled_plugins = [
  "io.containerd.grpc.v1.cri",
  "io.containerd.cri.v1.images",
  "io.containerd.cri.v1.runtime",
  "io.containerd.podsandbox.controller.v1.podsandbox",
  "io.containerd.nri.v1.nri",
]
`

// containerdUnit is containerd's own unit file with this machine's places.
const containerdUnit = `[Unit]
Description=containerd
After=dbus.socket
[Service]
Type=notify
ExecStart=%[1]s/tools/containerd
Environment=PATH=%[1]s:%[1]s/tools:%[2]s
Environment=NVIDIA_SHIM_CONFIG=%[3]s
Environment=CONTAINERD_SUPPRESS_DEPRECATION_WARNINGS=1
Delegate=yes
KillMode=process
[Install]
WantedBy=multi-user.target
`

// result is what a command did.
type result struct {
	stdout, stderr string
	exitCode       int
}

// try runs a command in the machine, as root, in all of its namespaces.
func (m *machine) try(t testing.TB, stdin io.Reader, argv ...string) result {
	t.Helper()
	nsenter, err := lookTool("nsenter")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	flags := []string{"--target", strconv.Itoa(m.cmd.Process.Pid), "--mount", "--pid", "--uts", "--ipc", "--cgroup", "--"}
	cmd := exec.CommandContext(ctx, nsenter, append(flags, argv...)...)
	cmd.Env = []string{"PATH=" + inBin + ":" + inBin + "/tools:" + systemPath, "LC_ALL=C"}
	cmd.Dir = "/"
	var stdout, stderr bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stdin, &stdout, &stderr
	cmd.WaitDelay = 5 * time.Second // a shim could hold the pipes open
	err = cmd.Run()
	r := result{stdout: stdout.String(), stderr: stderr.String()}
	var exit *exec.ExitError
	switch {
	case ctx.Err() != nil:
		t.Fatalf("%q: not done after two minutes\n%s%s", argv, r.stdout, r.stderr)
	case errors.As(err, &exit):
		r.exitCode = exit.ExitCode()
	case err != nil:
		t.Fatalf("%q: %v", argv, err)
	}
	return r
}

// run is try for a command that has to succeed; it returns the output.
func (m *machine) run(t testing.TB, argv ...string) string {
	t.Helper()
	r := m.try(t, nil, argv...)
	if r.exitCode != 0 {
		t.Fatalf("%q: exit status %d\n%s%s", argv, r.exitCode, r.stdout, r.stderr)
	}
	return r.stdout
}

// waitRunning waits for the end of the boot.
func (m *machine) waitRunning(t *testing.T) {
	t.Helper()
	start := time.Now()
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("end of the machine's journal:\n%s", lastLines(m.try(t, nil, "journalctl", "--no-pager", "-o", "cat").stdout, 60))
		}
	})
	testenv.Await(t, 90*time.Second, "systemd is running", func() bool {
		r := m.try(t, nil, "systemctl", "is-system-running")
		state := strings.TrimSpace(r.stdout)
		if state == "degraded" {
			t.Fatalf("systemd is degraded: %s\n%s", r.stderr, m.try(t, nil, "systemctl", "--failed", "--no-pager").stdout)
		}
		return state == "running"
	})
	t.Logf("systemd was up after %v", time.Since(start).Round(10*time.Millisecond))
}

func (m *machine) importImage(t *testing.T) {
	t.Helper()
	tar, err := images.Build(imageName)
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(tar)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if r := m.try(t, f, "ctr", "images", "import", "-"); r.exitCode != 0 {
		t.Fatalf("import: %s%s", r.stdout, r.stderr)
	}
}
