package osthread

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestTheErrorOfTheFunctionComesBack(t *testing.T) {
	want := errors.New("x")
	if err := Do(func() error { return want }); err != want {
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

func TestTheThreadIsNeitherTheMainOneNorUsedAgain(t *testing.T) {
	for range 20 {
		var tid int
		if err := Do(func() error {
			tid = unix.Gettid()
			// What changes the thread must not be seen by any other.
			return unix.Unshare(unix.CLONE_FS)
		}); err != nil {
			t.Fatal(err)
		}
		if tid == os.Getpid() {
			t.Error("the function ran on the main thread")
		}
		gone := func() bool {
			_, err := os.Stat(filepath.Join("/proc/self/task", strconv.Itoa(tid)))
			return errors.Is(err, os.ErrNotExist)
		}
		for deadline := time.Now().Add(5 * time.Second); !gone() && time.Now().Before(deadline); {
			time.Sleep(time.Millisecond)
		}
		if !gone() {
			t.Errorf("thread %d is still there", tid)
		}
	}
}

// The main thread is locked by this init, so that the test below runs on it.
func init() { runtime.LockOSThread() }

func TestMain(m *testing.M) {
	if unix.Gettid() != os.Getpid() {
		os.Stderr.WriteString("osthread: the tests do not begin on the main thread\n")
		os.Exit(1)
	}
	// run is what Do starts on a goroutine of its own; here it is on the main thread.
	result := make(chan error, 1)
	var tid int
	run(func() error { tid = unix.Gettid(); return nil }, result)
	if err := <-result; err != nil || tid == os.Getpid() || tid == 0 {
		os.Stderr.WriteString("osthread: on the main thread the function must run on another one\n")
		os.Exit(1)
	}
	os.Exit(m.Run())
}
