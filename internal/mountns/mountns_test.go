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

// The main thread is locked by this init, so that TestMain runs on it.
func init() { runtime.LockOSThread() }

func TestMain(m *testing.M) {
	if unix.Gettid() != os.Getpid() {
		os.Stderr.WriteString("mountns: the tests do not begin on the main thread\n")
		os.Exit(1)
	}
	// The first thread that the worker gets is the main one.
	result := make(chan int)
	go func() { result <- m.Run() }()
	go func() { os.Exit(<-result) }()
	start = func() {}
	work()
}

func TestTheErrorOfTheFunctionComesBack(t *testing.T) {
	want := errors.New("x")
	if err := errors.Join(Do(func() error { return want }), Do(func() error { return nil })); !errors.Is(err, want) || err.Error() != "x" {
		t.Errorf("error %v", err)
	}
	// So does a panic, which would end the process.
	err := Do(func() error { panic("boom") })
	if err == nil || !strings.Contains(err.Error(), "boom") || strings.Contains(err.Error(), "\n") {
		t.Errorf("error %v", err)
	}
}

func TestTheThreadIsNotTheMainOneAndGoesBackToItsMountNamespace(t *testing.T) {
	here, err := os.Readlink("/proc/self/ns/mnt")
	if err != nil {
		t.Fatal(err)
	}
	for range 20 {
		var tid int
		var before, inside string
		if err := Do(func() (err error) {
			tid = unix.Gettid()
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
		if tid == os.Getpid() {
			t.Error("the function ran on the main thread")
		}
		if before != here || inside == here {
			t.Errorf("the thread was in %s and went to %s; the process is in %s", before, inside, here)
		}
		if _, err := os.Stat(filepath.Join("/proc/self/task", strconv.Itoa(tid))); err != nil {
			t.Errorf("the thread ended: %v", err)
		}
	}
}

// A thread that cannot return is replaced and does not end.
func TestAThreadThatIsStuckIsReplaced(t *testing.T) {
	var stuck, next int
	err := Do(func() error { return nil }) // the thread has opened what it keeps open
	before, readErr := os.ReadDir("/proc/self/fd")
	if err := errors.Join(err, readErr); err != nil {
		t.Fatal(err)
	}
	if err := Do(func() error {
		stuck = unix.Gettid()
		// Without CAP_SYS_ADMIN it cannot enter a namespace.
		var data [2]unix.CapUserData
		return unix.Capset(&unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, &data[0])
	}); err != nil {
		t.Fatal(err)
	}
	if err := Do(func() error { next = unix.Gettid(); return unix.Unshare(unix.CLONE_NEWNS) }); err != nil || next == stuck {
		t.Errorf("thread %d after %d: %v", next, stuck, err)
	}
	if _, err := os.Stat(filepath.Join("/proc/self/task", strconv.Itoa(stuck))); err != nil {
		t.Errorf("the thread ended: %v", err)
	}
	if after, err := os.ReadDir("/proc/self/fd"); err != nil || len(after) != len(before) {
		t.Errorf("%d descriptors after %d: %v", len(after), len(before), err)
	}
}

func TestChildrenWithAParentDeathSignalOutliveTheFunctions(t *testing.T) {
	stop := make(chan struct{})
	var functions, children sync.WaitGroup
	functions.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				_ = Do(func() error { return unix.Unshare(unix.CLONE_NEWNS) })
			}
		}
	})
	for range 4 {
		children.Go(func() {
			for range 50 {
				cmd := exec.Command("sleep", "0.02")
				cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
				// As containerd's reaper does: the thread is locked only while the child starts,
				// and no thread waits for it while it runs.
				runtime.LockOSThread()
				err := cmd.Start()
				runtime.UnlockOSThread()
				if err == nil {
					time.Sleep(25 * time.Millisecond)
					err = cmd.Wait()
				}
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	children.Wait()
	close(stop)
	functions.Wait()
}
