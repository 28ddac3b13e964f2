package procmask

import (
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// sandbox starts a process in its own mount namespace (and more, by flags), runs setup there and
// waits until the test is done with it.
type sandbox struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bytes.Buffer
}

func start(t *testing.T, flags uintptr, setup string) *sandbox {
	t.Helper()
	ready, w, err := os.Pipe()
	check(t, err)
	s := &sandbox{out: &bytes.Buffer{}}
	s.cmd = exec.Command("/bin/sh", "-c", setup+"\necho ready >&3; exec 3>&-; read line; eval \"$line\"")
	s.cmd.ExtraFiles = []*os.File{w}
	s.cmd.Stdout, s.cmd.Stderr = s.out, s.out
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: flags}
	if flags&syscall.CLONE_NEWUSER != 0 {
		s.cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: 100000, Size: 65536}}
		s.cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: 100000, Size: 65536}}
		s.cmd.SysProcAttr.Credential = &syscall.Credential{}
	}
	if s.in, err = s.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	check(t, s.cmd.Start())
	w.Close()
	t.Cleanup(func() { s.in.Close(); _ = s.cmd.Wait() })
	if b, _ := io.ReadAll(ready); string(b) != "ready\n" {
		s.in.Close()
		_ = s.cmd.Wait()
		t.Fatalf("sandbox did not start: %s", s.out)
	}
	return s
}

// finish lets the sandbox run one more line and returns its output.
func (s *sandbox) finish(line string) string {
	_, _ = io.WriteString(s.in, line+"\n")
	s.in.Close()
	_ = s.cmd.Wait()
	return s.out.String()
}

const freshProc = "mount --make-rprivate / && mount -t proc proc /proc"

func newMask(t *testing.T) *Mask {
	t.Helper()
	m, err := New([]File{
		{"version", []byte("NVRM version: test\n")},
		{"params", []byte("ModifyDeviceFiles: 0\n")},
		{"gpus/0000:65:00.0/information", []byte("Device Minor: 3\n")},
		{"gpus/0000:66:00.0/information", []byte("Device Minor: 4\n")},
	}, "")
	check(t, err)
	t.Cleanup(func() { m.Close() })
	return m
}

// mountsOfProc returns the host's mounts at and below /proc: other tests mount elsewhere meanwhile.
func mountsOfProc(t *testing.T) string {
	t.Helper()
	data, err := os.ReadFile("/proc/self/mountinfo")
	check(t, err)
	var list strings.Builder
	for line := range strings.Lines(string(data)) {
		if strings.HasPrefix(strings.Fields(line)[4], "/proc") {
			list.WriteString(line)
		}
	}
	return list.String()
}

func TestMaskIsSeenInTheContainerOnlyAndCannotBeChanged(t *testing.T) {
	const flags = syscall.CLONE_NEWNS | syscall.CLONE_NEWPID
	for name, tc := range map[string]struct {
		flags uintptr
		setup string
	}{
		"plain":                 {flags, freshProc},
		"with a user namespace": {flags | syscall.CLONE_NEWUSER, freshProc},
		// What runc puts over a masked path.
		"over a read-only tmpfs": {flags, freshProc + " && mount -t tmpfs -o ro none /proc/driver"},
	} {
		t.Run(name, func(t *testing.T) {
			before := mountsOfProc(t)
			s := start(t, tc.flags, tc.setup)
			check(t, newMask(t).Attach(s.cmd.Process.Pid, "/"))
			mounts, err := os.ReadFile("/proc/" + strconv.Itoa(s.cmd.Process.Pid) + "/mountinfo")
			if err != nil || !strings.Contains(string(mounts), "/proc/driver rw,nosuid,nodev,noexec") {
				t.Errorf("%v, mounts\n%s", err, mounts)
			}
			out := s.finish(`cd /proc/driver; find . -type f | sort; cat params gpus/*/information; ` +
				`(echo 1 > params); touch new; mkdir d; rm -f version; mount -o remount,rw /proc/driver && touch new2; ls -ld .`)
			for _, want := range []string{
				"./gpus/0000:65:00.0/information\n./gpus/0000:66:00.0/information\n./params\n./version\n",
				"ModifyDeviceFiles: 0\nDevice Minor: 3\nDevice Minor: 4\n", "dr-xr-xr-x",
			} {
				if !strings.Contains(out, want) {
					t.Errorf("missing %q in:\n%s", want, out)
				}
			}
			if strings.Count(out, "Read-only file system")+strings.Count(out, "ermission denied") < 4 {
				t.Errorf("a write was not refused:\n%s", out)
			}
			if after := mountsOfProc(t); after != before {
				t.Errorf("the host's mount table changed:\n%s", after)
			}
		})
	}
}

func TestT25AttachRefusesWhatIsNotProcfs(t *testing.T) {
	for name, setup := range map[string]string{
		"a tmpfs over the directory":   " && mount -t tmpfs none /proc/driver",
		"a /proc that is a tmpfs":      " && mount -t tmpfs none /proc && mkdir /proc/driver",
		"a link in a tmpfs at /proc":   " && mount -t tmpfs none /proc && ln -s /etc /proc/driver",
		"a bind of a host directory":   " && mount --bind /etc /proc/driver",
		"a procfs in a tmpfs at /proc": " && mount -t tmpfs none /proc && mkdir /proc/driver && mount -t proc proc /proc/driver",
		"a /proc that is a link": " && mount -t tmpfs none /mnt && cd /mnt && mkdir real old && ln -s real proc && " +
			"mount -t proc proc real && pivot_root . old",
	} {
		s := start(t, syscall.CLONE_NEWNS|syscall.CLONE_NEWPID, freshProc+setup)
		pid := s.cmd.Process.Pid
		process := "/proc/" + strconv.Itoa(pid)
		mounts := process + "/mountinfo"
		before, _ := os.ReadFile(mounts)
		if err := newMask(t).Attach(pid, process+"/root"); err == nil || errors.Is(err, ErrEnded) {
			t.Errorf("%s: %v", name, err)
		}
		if after, _ := os.ReadFile(mounts); string(before) != string(after) {
			t.Errorf("%s: the mount table of the container changed:\n%s", name, after)
		}
	}
}

func TestT25NoLinkIsFollowedToTheDirectory(t *testing.T) {
	proc, err := unix.Open("/proc", unix.O_PATH|unix.O_CLOEXEC, 0)
	check(t, err)
	defer unix.Close(proc)
	for _, name := range []string{"/proc/driver", "1/root/etc", "self/task", "../etc", "driver/missing", "version"} {
		if fd, err := openDirectory(proc, name); err == nil {
			unix.Close(fd)
			t.Errorf("opened %s", name)
		}
	}
}

func TestAttachRefusesTheHostAndAProcessThatEnded(t *testing.T) {
	before := mountsOfProc(t)
	host := start(t, syscall.CLONE_NEWPID, "true")
	if err := newMask(t).Attach(host.cmd.Process.Pid, "/"); err == nil || !strings.Contains(err.Error(), "mount namespace of the host") {
		t.Errorf("the host's mount namespace: %v", err)
	}
	// A process that took the number of the container's has another parent (T17).
	file := filepath.Join(t.TempDir(), "pid")
	other := start(t, syscall.CLONE_NEWNS, freshProc+" && { sleep 60 3>&- & echo $! >"+file+"; }")
	defer other.finish("kill $!")
	number, err := os.ReadFile(file)
	check(t, err)
	pid, err := strconv.Atoi(strings.TrimSpace(string(number)))
	check(t, err)
	if err := newMask(t).Attach(pid, "/"); err == nil {
		t.Error("attached to the child of another process")
	}
	ended := start(t, syscall.CLONE_NEWNS|syscall.CLONE_NEWPID, freshProc)
	ended.finish("true")
	if err := newMask(t).Attach(ended.cmd.Process.Pid, "/"); !errors.Is(err, ErrEnded) {
		t.Errorf("a process that ended: %v", err)
	}
	if after := mountsOfProc(t); after != before {
		t.Errorf("the host's mount table changed:\n%s", after)
	}
}

// The shim may have a mount namespace of its own: that of process 1 is the host's.
func TestAttachRefusesTheMountNamespaceOfProcess1(t *testing.T) {
	const inside = "MASK_TEST_INSIDE"
	if os.Getenv(inside) == "" {
		self, err := os.Executable()
		check(t, err)
		cmd := exec.Command("unshare", "--pid", "--fork", "--mount-proc", "sh", "-c", `unshare --mount "$0" "$@"; exit $?`, self, "-test.run=^"+t.Name()+"$", "-test.v")
		cmd.Env = append(os.Environ(), inside+"=1")
		if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "--- PASS: "+t.Name()) {
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	host := start(t, 0, "exec nsenter --mount=/proc/1/ns/mnt sh -c 'echo ready >&3; exec 3>&-; read line'")
	// Without the check it is the other root file system that is refused.
	if err := newMask(t).Attach(host.cmd.Process.Pid, t.TempDir()); err == nil || !strings.Contains(err.Error(), "mount namespace of the host") {
		t.Error(err)
	}
}

// A process that exits loses its namespaces before its pidfd says that it has ended, and is not
// reaped yet.
func TestAProcessThatEndsMeanwhile(t *testing.T) {
	mask, before := newMask(t), mountsOfProc(t)
	for range 100 {
		s := start(t, syscall.CLONE_NEWNS|syscall.CLONE_NEWPID, freshProc+" && mount -t tmpfs none /proc")
		check(t, s.cmd.Process.Kill())
		var err error
		// A mask can be attached once only, so not here.
		for err == nil || strings.Contains(err.Error(), "it is not on procfs") && !errors.Is(err, ErrEnded) {
			err = mask.Attach(s.cmd.Process.Pid, "/")
		}
		if !errors.Is(err, ErrEnded) {
			t.Error(err)
		}
		s.finish("")
	}
	if after := mountsOfProc(t); after != before {
		t.Errorf("the host's mount table changed:\n%s", after)
	}
}

// T17: the init process of another container of the pod, which is this process' child too.
func TestT17AttachRefusesAnotherContainerOfThePod(t *testing.T) {
	s := start(t, syscall.CLONE_NEWNS|syscall.CLONE_NEWPID, freshProc)
	if err := newMask(t).Attach(s.cmd.Process.Pid, t.TempDir()); err == nil || !strings.Contains(err.Error(), "root file system") {
		t.Errorf("a process with another root file system: %v", err)
	}
	if out := s.finish("ls /proc/driver"); strings.Contains(out, "params") {
		t.Errorf("the mask was attached: %s", out)
	}
}

// T17: another container's init process, with the same root file system, gets the number between
// the two calls.
func TestT17AttachRefusesAProcessThatTookTheNumber(t *testing.T) {
	ended := start(t, syscall.CLONE_NEWNS|syscall.CLONE_NEWPID, freshProc)
	pidfd, err := unix.PidfdOpen(ended.cmd.Process.Pid, 0)
	check(t, err)
	defer unix.Close(pidfd)
	ended.finish("true")
	other := start(t, syscall.CLONE_NEWNS|syscall.CLONE_NEWPID, freshProc)
	var root unix.Stat_t
	check(t, unix.Stat("/", &root))
	if err := newMask(t).attach(other.cmd.Process.Pid, pidfd, &root); !errors.Is(err, unix.ESRCH) {
		t.Errorf("%v, want %v", err, unix.ESRCH)
	}
	if out := other.finish("ls /proc/driver"); strings.Contains(out, "params") {
		t.Errorf("the mask was attached: %s", out)
	}
}

// T32: the files have the container's label. A kernel without SELinux does not know the option.
func TestT32TheMaskHasTheMountLabel(t *testing.T) {
	const label = "system_u:object_r:container_file_t:s0:c1,c2"
	m, err := New([]File{{"version", nil}}, label)
	if _, noSELinux := os.Stat("/sys/fs/selinux/enforce"); noSELinux != nil {
		if err == nil || !strings.Contains(err.Error(), "set context="+label) {
			t.Errorf("error %v", err)
		}
		return
	}
	check(t, err)
	defer m.Close()
	value := make([]byte, 256)
	n, err := unix.Getxattr("/proc/self/fd/"+strconv.Itoa(int(m.f.Fd()))+"/version", "security.selinux", value)
	check(t, err)
	if got := strings.TrimRight(string(value[:n]), "\x00"); got != label {
		t.Errorf("the label is %q", got)
	}
}

func TestMaskStaysWithinItself(t *testing.T) {
	for _, name := range []string{"../x", "/x", "a/../../x"} {
		m, err := New([]File{{name, nil}}, "")
		if err == nil {
			m.Close()
		}
		if err == nil || !strings.Contains(err.Error(), "not below the mask") {
			t.Errorf("file %q: %v", name, err)
		}
	}
}

func TestAMaskCanBeReadByProgramsThatAreNotRoot(t *testing.T) {
	old := syscall.Umask(0o077)
	m, err := New([]File{{Path: "gpus/0000:19:00.0/information", Data: []byte("x")}, {Path: "version"}}, "")
	if now := syscall.Umask(old); now != 0o077 {
		t.Errorf("the umask of the process became %#o", now)
	}
	check(t, err)
	defer m.Close()
	for name, want := range map[string]os.FileMode{"": 0o555, "gpus": 0o555, "gpus/0000:19:00.0": 0o555, "gpus/0000:19:00.0/information": 0o444, "version": 0o444} {
		info, err := os.Stat("/proc/self/fd/" + strconv.Itoa(int(m.f.Fd())) + "/" + name)
		check(t, err)
		if info.Mode().Perm() != want {
			t.Errorf("%q is %v", name, info.Mode())
		}
	}
}

// Other containers of a pod are created at the same time: a process between fork and exec holds
// copies of the files that are being written.
func TestAMaskIsMadeWhileProcessesAreStarted(t *testing.T) {
	var starters sync.WaitGroup
	for range 4 {
		starters.Go(func() {
			for range 100 {
				if err := exec.Command("/bin/true").Run(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for range 200 {
		m, err := New([]File{{Path: "version", Data: []byte("1\n")}, {Path: "gpus/0/information", Data: []byte("2\n")}}, "")
		if err != nil {
			t.Error(err)
			break
		}
		m.Close()
	}
	starters.Wait()
}
