package procfs

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

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
