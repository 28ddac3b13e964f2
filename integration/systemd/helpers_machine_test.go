package systemd

import (
	"crypto/rand"
	"encoding/hex"
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
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simhost"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testenv"
)

func TestMain(m *testing.M) { simhost.Main(m) }

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
	// treePackages is what a machine consists of, besides a minimal Debian 12.
	treePackages = "systemd,systemd-sysv,dbus,crun,rpm"
	// systemPath is where the machine's own programs are.
	systemPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
)

// machine is systemd in namespaces of the test's own, with containerd as a service.
type machine struct {
	simhost.Devices

	dir     string // of the host, holds everything
	cgroup  string // the machine's root cgroup, as the host sees it
	image   string // of its containers
	systemd *testenv.Command
	nextID  int
}

// startMachine boots a machine with the simulated driver.
func startMachine(t *testing.T) *machine {
	t.Helper()
	return startMachineWith(t, sim.Options{GPUs: gpuCount})
}

// startMachineWith is startMachine with another driver.
func startMachineWith(t *testing.T, driver sim.Options) *machine {
	t.Helper()
	m := newMachine(t)
	driver.Dir = m.dir + inDriver
	m.Devices = simhost.NewDevices(t, sim.New(t, driver))
	config, err := os.ReadFile(m.Driver.ConfigPath)
	if err != nil {
		t.Fatal(err)
	}
	tar, err := images.Build(imageName)
	if err != nil {
		t.Fatal(err)
	}
	m.image = images.Ref(imageName)
	m.start(t, strings.ReplaceAll(string(config), m.Driver.Dir, inDriver), "", tar)
	return m
}

// newMachine makes a machine that is not started. It is gone when the test ends.
func newMachine(t *testing.T) *machine {
	t.Helper()
	before := testenv.Snapshot(t)
	t.Cleanup(func() { before.AssertUnchanged(t) })
	m := &machine{dir: machineDir(t)}
	t.Cleanup(func() {
		if err := os.RemoveAll(m.dir); err != nil {
			t.Error(err)
		}
	})
	return m
}

// start boots the machine with this configuration of the shim, waits until systemd says that it is
// running, and imports the image of its containers. mounts is a script that adds to bootScript.
func (m *machine) start(t *testing.T, config, mounts, image string) {
	t.Helper()
	tree, err := images.DebianTree(treePackages)
	if err != nil {
		t.Fatalf("a Debian tree with systemd is missing: %v", err)
	}
	m.writeFiles(t, config)
	m.boot(t, tree, mounts)
	m.waitRunning(t)
	m.importImage(t, image)
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
	for _, name := range []string{"upper", "work", "root", "srv/bin", "srv/containerd"} {
		if err := os.MkdirAll(filepath.Join(dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// makeCgroup makes the machine's cgroup in the cgroup2 hierarchy that every host has, beside
// those of version 1 or alone.
func (m *machine) makeCgroup(t *testing.T) *os.File {
	t.Helper()
	parent := "/sys/fs/cgroup"
	if testenv.CgroupVersions()[0] == 1 {
		parent += "/unified"
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
	dir, err := os.Open(m.cgroup)
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// bootScript runs in the machine's namespaces. It mounts what systemd expects, without a way to
// change settings of the kernel that are not of a namespace, and becomes systemd, without the
// capabilities that reach beyond the namespaces. Arguments: the machine's directory, the Debian
// tree, bin/ of the repository, and what to run in the machine's root while the host's is there.
const bootScript = `set -e
safe=nosuid,nodev,noexec
mount --make-rprivate /
mount -t overlay -o "lowerdir=$2,upperdir=$1/upper,workdir=$1/work" overlay "$1/root"
cd "$1/root"
mount -t proc -o $safe proc proc
for name in proc/sys proc/sysrq-trigger; do
	[ -e $name ] || continue # a kernel without SysRq
	mount --bind $name $name
	mount -o remount,bind,ro $name
done
mount -t sysfs -o $safe sysfs sys
mount -o remount,bind,ro,$safe sys
mount -t cgroup2 -o $safe cgroup2 sys/fs/cgroup
mount -t tmpfs -o nosuid,nodev,mode=755 tmpfs run
mount -t tmpfs -o nosuid,mode=755 tmpfs dev
for name in null zero full random urandom tty; do
	: >dev/$name
	mount --bind /dev/$name dev/$name
done
mkdir dev/pts dev/shm
mount -t devpts -o nosuid,noexec,newinstance,ptmxmode=0666,mode=620 devpts dev/pts
mount -t tmpfs -o nosuid,nodev,mode=1777 tmpfs dev/shm
ln -s pts/ptmx dev/ptmx
ln -s /proc/self/fd dev/fd
ln -s fd/0 dev/stdin
ln -s fd/1 dev/stdout
ln -s fd/2 dev/stderr
mount --bind "$1/srv" srv
mount --bind "$3" srv/bin
mount -o remount,bind,ro srv/bin
eval "$4"
pivot_root . mnt
cd /
umount -l mnt
if [ -e "$1" ]; then
	echo "the host's files are still there"
	exit 1
fi
exec setpriv ` + bounded + ` /lib/systemd/systemd
`

// bounded has setpriv leave those capabilities out.
const bounded = "--bounding-set=-sys_module,-sys_rawio,-sys_boot,-sys_time,-audit_control,-audit_read,-syslog"

// boot starts systemd as the first process of new namespaces.
func (m *machine) boot(t *testing.T, tree, mounts string) {
	t.Helper()
	cgroup := m.makeCgroup(t)
	defer cgroup.Close()
	m.systemd = &testenv.Command{
		// The cgroup namespace is made when the process is in the machine's cgroup: that
		// becomes the root.
		Name: "systemd", Argv: []string{"unshare", "--cgroup", "/bin/sh", "-c", bootScript, "sh", m.dir, tree, testenv.ShimDir(), mounts},
		Dir: "/", Env: []string{"container=other", "PATH=" + systemPath}, Log: filepath.Join(m.dir, "boot.log"),
		Attributes: syscall.SysProcAttr{
			Cloneflags:  syscall.CLONE_NEWNS | syscall.CLONE_NEWPID | syscall.CLONE_NEWUTS | syscall.CLONE_NEWIPC | syscall.CLONE_NEWNET,
			UseCgroupFD: true, CgroupFD: int(cgroup.Fd()),
		},
		End: syscall.SIGKILL, // and with it every process of the machine
	}
	if err := m.systemd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.systemd.Stop)
	testenv.Await(t, "the machine's first process is systemd", func() bool {
		if err := m.systemd.Ended(); err != nil {
			t.Fatal(err)
		}
		comm, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", m.systemd.PID()))
		return string(comm) == "systemd\n"
	})
}

// inNetwork calls fn in the machine's network: a socket that it makes stays there.
func (m *machine) inNetwork(fn func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // the thread ends with this goroutine
		network, err := os.Open(fmt.Sprintf("/proc/%d/ns/net", m.systemd.PID()))
		if err == nil {
			defer network.Close()
			err = unix.Setns(int(network.Fd()), unix.CLONE_NEWNET)
		}
		if err == nil {
			err = fn()
		}
		done <- err
	}()
	return <-done
}

// masked are the units of Debian that have nothing to do here.
var masked = []string{
	"systemd-journald-audit.socket", "systemd-sysctl.service", "systemd-modules-load.service", "systemd-random-seed.service",
	"systemd-networkd.service", "systemd-networkd.socket", "systemd-resolved.service", "systemd-timesyncd.service",
	"console-getty.service", "getty@.service", "getty.target", "dev-hugepages.mount",
	"apt-daily.timer", "apt-daily-upgrade.timer", "dpkg-db-backup.timer", "fstrim.timer",
}

// writeFiles writes what the machine has on top of the Debian tree.
func (m *machine) writeFiles(t *testing.T, config string) {
	t.Helper()
	files := map[string]string{
		// Without an identity systemd would take this for a first boot.
		"/etc/machine-id":                        strings.Repeat(strings.TrimPrefix(filepath.Base(m.dir), "nse-"), 4) + "\n",
		inConfig:                                 config,
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

// try runs a command in the machine, as root, in all of its namespaces.
func (m *machine) try(t testing.TB, stdin io.Reader, argv ...string) testenv.Result {
	t.Helper()
	flags := []string{"--target", strconv.Itoa(m.systemd.PID()), "--mount", "--pid", "--uts", "--ipc", "--cgroup", "--"}
	cmd := exec.Command("nsenter", append(flags, argv...)...)
	cmd.Env = []string{"PATH=" + inBin + ":" + inBin + "/tools:" + systemPath, "LC_ALL=C"}
	cmd.Dir, cmd.Stdin = "/", stdin
	r, err := testenv.Output(2*time.Minute, cmd)
	if err != nil {
		t.Fatalf("%v\n%s%s", err, r.Output, r.Error)
	}
	return r
}

// run is try for a command that has to succeed; it returns the output.
func (m *machine) run(t testing.TB, argv ...string) string {
	t.Helper()
	r := m.try(t, nil, argv...)
	if r.ExitCode != 0 {
		t.Fatalf("%q: exit status %d\n%s%s", argv, r.ExitCode, r.Output, r.Error)
	}
	return r.Output
}

// waitRunning waits for the end of the boot.
func (m *machine) waitRunning(t *testing.T) {
	t.Helper()
	start := time.Now()
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("end of the machine's journal:\n%s", m.try(t, nil, "journalctl", "--no-pager", "-o", "cat", "-n", "60").Output)
		}
	})
	testenv.Await(t, "systemd is running", func() bool {
		r := m.try(t, nil, "systemctl", "is-system-running")
		state := strings.TrimSpace(r.Output)
		if state == "degraded" {
			t.Fatalf("systemd is degraded: %s\n%s", r.Error, m.try(t, nil, "systemctl", "--failed", "--no-pager").Output)
		}
		return state == "running"
	})
	t.Logf("systemd was up after %v", time.Since(start).Round(10*time.Millisecond))
}

func (m *machine) importImage(t *testing.T, tar string) {
	t.Helper()
	f, err := os.Open(tar)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if r := m.try(t, f, "ctr", "images", "import", "-"); r.ExitCode != 0 {
		t.Fatalf("import: %s%s", r.Output, r.Error)
	}
}
