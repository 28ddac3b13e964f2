package procfs

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

// The packages check and status test the rest over fixture directories.
func TestThisProcessInTheKernelsProcfs(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(Host.Named(filepath.Base(self)), func(p Process) bool { return p.PID == os.Getpid() })
	if i < 0 {
		t.Fatal("this process is not found by the name of its program")
	}
	if p := Host.Named(filepath.Base(self))[i]; p.Program != self || !slices.Equal(p.Args, os.Args) || p.Environ["PATH"] != os.Getenv("PATH") {
		t.Errorf("%+v", p)
	}
	var caps [2]unix.CapUserData
	if err := unix.Capget(&unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, &caps[0]); err != nil {
		t.Fatal(err)
	}
	want := os.Geteuid() == 0 && caps[0].Effective&(1<<unix.CAP_SYS_ADMIN) != 0
	if got := Host.Administers(os.Getpid()); got != want {
		t.Errorf("it administers the host: %t, want %t", got, want)
	}
	if Host.InOtherPIDNamespace(os.Getpid()) {
		t.Error("this process is in another PID namespace than itself")
	}
}

// A program's name can look like more fields.
func TestIDOfAProcess(t *testing.T) {
	sleep, err := exec.LookPath("sleep")
	if err != nil {
		t.Fatal(err)
	}
	odd := filepath.Join(t.TempDir(), "a) S 1 2")
	if err := os.Symlink(sleep, odd); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(odd, "60")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait()
	defer cmd.Process.Kill()
	self, err := Host.ID(os.Getpid())
	if err != nil || self.PID != os.Getpid() || self.Start == 0 {
		t.Errorf("this process: %+v, %v", self, err)
	}
	if child, err := Host.ID(cmd.Process.Pid); err != nil || child.Start < self.Start || child.Start > self.Start+100*3600 {
		t.Errorf("a child: %+v, %v; this process %+v", child, err, self)
	}
	if _, err := Host.ID(1 << 23); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no process: %v", err)
	}
}
