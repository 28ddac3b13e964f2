package mountns

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestTheErrorOfTheFunctionComesBack(t *testing.T) {
	want := errors.New("x")
	if err := Do(func() error { return want }); !errors.Is(err, want) {
		t.Errorf("error %v", err)
	}
	if err := Do(func() error { return nil }); err != nil {
		t.Errorf("error %v", err)
	}
}

// Whoever recovers at the edge of a request cannot recover on another goroutine.
func TestAPanicIsAnErrorAndNotTheEndOfTheProcess(t *testing.T) {
	err := Do(func() error { panic("boom") })
	if err == nil || !strings.Contains(err.Error(), "boom") || strings.Contains(err.Error(), "\n") {
		t.Errorf("error %v", err)
	}
	var m map[string]int
	if err := Do(func() error { m["x"] = 1; return nil }); err == nil {
		t.Error("a runtime error is no error")
	}
}

// A process dies with the thread that started it where it has a parent death
// signal, as every runc of containerd's has.
func TestTheThreadIsNotTheMainOneAndNeverEnds(t *testing.T) {
	for range 20 {
		var tid int
		if err := Do(func() error {
			tid = unix.Gettid()
			return unix.Unshare(unix.CLONE_NEWNS)
		}); err != nil {
			t.Fatal(err)
		}
		if tid == os.Getpid() {
			t.Error("the function ran on the main thread")
		}
		time.Sleep(5 * time.Millisecond)
		if _, err := os.Stat(filepath.Join("/proc/self/task", strconv.Itoa(tid))); err != nil {
			t.Errorf("the thread ended: %v", err)
		}
	}
}

func TestChildrenWithAParentDeathSignalOutliveTheFunctions(t *testing.T) {
	var group sync.WaitGroup
	stop := make(chan struct{})
	group.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				_ = Do(func() error { return unix.Unshare(unix.CLONE_NEWNS) })
			}
		}
	})
	errs := make(chan error, 400)
	var children sync.WaitGroup
	for range 4 {
		children.Go(func() {
			for range 50 {
				cmd := exec.Command("sleep", "0.02")
				cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
				// As containerd's reaper does: locked while it starts, no longer.
				runtime.LockOSThread()
				err := cmd.Start()
				runtime.UnlockOSThread()
				if err == nil {
					// As its reaper too: no thread sits in wait(2).
					time.Sleep(25 * time.Millisecond)
					err = cmd.Wait()
				}
				if err != nil {
					errs <- err
				}
			}
		})
	}
	children.Wait()
	close(stop)
	group.Wait()
	if n := len(errs); n > 0 {
		t.Errorf("%d of 200 children: %v", n, <-errs)
	}
}

func TestTheThreadGoesBackToItsMountNamespace(t *testing.T) {
	here, err := os.Readlink("/proc/self/ns/mnt")
	if err != nil {
		t.Fatal(err)
	}
	for range 5 {
		var before, inside string
		if err := Do(func() (err error) {
			if before, err = os.Readlink("/proc/thread-self/ns/mnt"); err != nil {
				return err
			}
			if err = unix.Unshare(unix.CLONE_NEWNS); err != nil {
				return err
			}
			inside, err = os.Readlink("/proc/thread-self/ns/mnt")
			return err
		}); err != nil {
			t.Fatal(err)
		}
		if before != here || inside == here {
			t.Errorf("the thread was in %s and went to %s; the process is in %s", before, inside, here)
		}
	}
}

func TestFunctionsAtTheSameTimeHaveThreadsOfTheirOwn(t *testing.T) {
	const n = 10
	var inside, done sync.WaitGroup
	inside.Add(n)
	var tids sync.Map
	for range n {
		done.Go(func() {
			_ = Do(func() error {
				tids.Store(unix.Gettid(), true)
				inside.Done()
				inside.Wait()
				return nil
			})
		})
	}
	done.Wait()
	count := 0
	tids.Range(func(any, any) bool { count++; return true })
	if count != n {
		t.Errorf("%d functions ran on %d threads", n, count)
	}
}

// The main thread is locked by this init, so that the test below runs on it.
func init() { runtime.LockOSThread() }

func TestMain(m *testing.M) {
	if unix.Gettid() != os.Getpid() {
		os.Stderr.WriteString("osthread: the tests do not begin on the main thread\n")
		os.Exit(1)
	}
	// work is what Do starts on a goroutine of its own; here it is on the main thread.
	result := make(chan error, 1)
	var tid int
	work(job{fn: func() error { tid = unix.Gettid(); return nil }, result: result}, make(chan struct{}))
	if err := <-result; err != nil || tid == os.Getpid() || tid == 0 {
		os.Stderr.WriteString("osthread: on the main thread the function must run on another one\n")
		os.Exit(1)
	}
	os.Exit(m.Run())
}
