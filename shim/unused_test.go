package shim

import (
	"net"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
)

// containerd does not know a shim whose start it has interrupted.
func TestAShimThatIsNeverUsedEnds(t *testing.T) {
	dir := plainBundle(t, "{}")
	for _, used := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			f := &fakeTasks{}
			s, _ := serviceAround(f)
			s.endUnused()
			if time.Sleep(unusedLimit / 2); used {
				_, err := s.Create(t.Context(), &taskapi.CreateTaskRequest{ID: "c", Bundle: dir})
				check(t, err)
			}
			time.Sleep(unusedLimit)
			if synctest.Wait(); slices.Contains(f.calls, "shutdown") == used {
				t.Errorf("used: %v, calls %v", used, f.calls)
			}
		})
	}
}

// So does one whose log is not read.
func TestAShimThatIsNeverStartedEnds(t *testing.T) {
	for _, started := range []bool{false, true} {
		socket := filepath.Join(t.TempDir(), "socket")
		check(t, os.WriteFile(socket, nil, 0o600))
		synctest.Test(t, func(t *testing.T) {
			var ended bool
			ctx := withStartLimit(t.Context(), socket, func(int) { ended = true })
			if time.Sleep(unusedLimit / 2); started {
				startLimit(ctx).Stop()
			}
			time.Sleep(unusedLimit)
			synctest.Wait()
			if _, err := os.Stat(socket); ended == started || (err == nil) != started {
				t.Errorf("started: %v; ended: %v, the socket: %v", started, ended, err)
			}
		})
	}
}

func TestSocketAt(t *testing.T) {
	path := filepath.Join(t.TempDir(), "socket")
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: path})
	check(t, err)
	defer listener.Close()
	f, err := listener.File()
	check(t, err)
	defer f.Close()
	if got := socketAt(int(f.Fd())); got != path {
		t.Errorf("%q", got)
	}
	other, err := os.Open(os.DevNull)
	check(t, err)
	defer other.Close()
	if got := socketAt(int(other.Fd())); got != "" {
		t.Errorf("/dev/null is %q", got)
	}
}
