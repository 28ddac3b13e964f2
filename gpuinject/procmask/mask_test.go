package procmask

import (
	"bytes"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
)

// target is a directory that every procfs has, whether or not a driver is loaded.
const target = "/proc/driver"

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

// mountinfo returns the host's mounts at and below /proc: other tests mount elsewhere meanwhile.
func mountinfo(t *testing.T) string {
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
		// What runc puts over a masked path, and what a checkpoint restores.
		"over a read-only tmpfs": {flags, freshProc + " && mount -t tmpfs -o ro none /proc/driver"},
	} {
		t.Run(name, func(t *testing.T) {
			before := mountinfo(t)
			s := start(t, tc.flags, tc.setup)
			check(t, newMask(t).Attach(s.cmd.Process.Pid, target))
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
			if after := mountinfo(t); after != before {
				t.Errorf("the host's mount table changed:\n%s", after)
			}
		})
	}
}

func TestT25AttachRefusesWhatIsNotProcfs(t *testing.T) {
	for name, tc := range map[string]struct{ setup, target string }{
		"a tmpfs over the target":          {freshProc + " && mount -t tmpfs none /proc/driver", target},
		"a /proc that is a tmpfs":          {freshProc + " && mount -t tmpfs none /proc && mkdir /proc/driver", target},
		"a bind of a host directory":       {freshProc + " && mount --bind /etc /proc/driver", target},
		"a magic link":                     {freshProc, "/proc/1/root/etc"},
		"a symbolic link":                  {freshProc, "/proc/self/task"},
		"a way up":                         {freshProc, "/proc/../etc"},
		"a way up and down again":          {freshProc, "/proc/../proc/driver"},
		"a missing directory":              {freshProc, "/proc/driver/missing"},
		"a file":                           {freshProc, "/proc/version"},
		"a target that is not below /proc": {freshProc, "/etc"},
		"a procfs below a /proc that is none": {
			freshProc + " && mount -t tmpfs none /proc && mkdir /proc/driver && mount -t proc proc /proc/driver", target},
		"a /proc that is a link": {
			"mount --make-rprivate / && mount -t tmpfs none /mnt && cd /mnt && mkdir real old && ln -s real proc && " +
				"mount -t proc proc real && pivot_root . old", target},
	} {
		s := start(t, syscall.CLONE_NEWNS|syscall.CLONE_NEWPID, tc.setup)
		pid := s.cmd.Process.Pid
		mounts := "/proc/" + strconv.Itoa(pid) + "/mountinfo"
		before, _ := os.ReadFile(mounts)
		if err := newMask(t).Attach(pid, tc.target); err == nil {
			t.Errorf("%s: attached", name)
		}
		if after, _ := os.ReadFile(mounts); string(before) != string(after) {
			t.Errorf("%s: the mount table of the container changed:\n%s", name, after)
		}
	}
}

func TestAttachRefusesTheHostAndAProcessThatEnded(t *testing.T) {
	before := mountinfo(t)
	host := start(t, syscall.CLONE_NEWPID, "true")
	if err := newMask(t).Attach(host.cmd.Process.Pid, target); err == nil || !strings.Contains(err.Error(), "mount namespace of the host") {
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
	if err := newMask(t).Attach(pid, target); err == nil {
		t.Error("attached to the child of another process")
	}
	ended := start(t, syscall.CLONE_NEWNS|syscall.CLONE_NEWPID, freshProc)
	ended.finish("true")
	if err := newMask(t).Attach(ended.cmd.Process.Pid, target); err == nil {
		t.Error("attached to a process that ended")
	}
	if after := mountinfo(t); after != before {
		t.Errorf("the host's mount table changed:\n%s", after)
	}
}

func TestMaskStaysWithinItself(t *testing.T) {
	for _, name := range []string{"../x", "/x", "a/../../x"} {
		if m, err := New([]File{{name, nil}}, ""); err == nil {
			m.Close()
			t.Errorf("file %q accepted", name)
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
