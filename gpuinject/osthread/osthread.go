// Package osthread runs a function on an operating system thread of its own, for
// system calls that change what a thread is: its mount namespace, its root
// directory.
//
// Such a thread is never given back to the Go scheduler, and it never ends. The
// kernel sends a process its parent death signal when the *thread* that started it
// ends (prctl(2), PR_SET_PDEATHSIG), and containerd has every runc killed by that
// signal. Which thread a goroutine is locked to nobody can choose: it may be one
// that has started the runc of another container of the pod a moment ago. So the
// thread goes back to the mount namespace and the root that it came from and waits
// for the next function.
//
// The main thread is never used: its namespaces are what /proc/PID of the whole
// process shows.
package osthread

import (
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

type job struct {
	fn     func() error
	result chan error
}

// idle are the threads that wait for a function. There are as many as functions
// have run at the same time.
var idle = make(chan chan<- job, 256)

// Do runs fn on a thread of its own and returns fn's error. Afterwards the thread's
// mount namespace and root are what they were; what else fn changes of it, fn
// changes back. fn must not start goroutines that rely on the thread. A panic of fn
// is an error: on a goroutine that nobody recovers it would end the process.
func Do(fn func() error) error {
	j := job{fn: fn, result: make(chan error, 1)}
	select {
	case thread := <-idle:
		thread <- j
	default:
		go work(j, make(chan struct{}))
	}
	return <-j.result
}

// work runs j and then what comes, on a thread that nothing else runs on. It closes
// off when it has one that is not the main thread.
func work(j job, off chan struct{}) {
	runtime.LockOSThread()
	if unix.Gettid() == unix.Getpid() {
		// While this goroutine is locked here another one runs on another thread.
		go work(j, off)
		<-off
		runtime.UnlockOSThread()
		return
	}
	close(off)
	from, err := remember()
	if err != nil {
		j.result <- fmt.Errorf("a thread of its own: %w", err)
		park()
	}
	jobs := make(chan job)
	for {
		err := protect(j.fn)
		if from.restore() != nil {
			j.result <- err
			park()
		}
		select {
		case idle <- jobs:
		default:
			j.result <- err
			park()
		}
		j.result <- err
		j = <-jobs
	}
}

// park keeps a thread that can be used no more.
func park() { select {} }

// origin is what a thread goes back to.
type origin struct{ mnt, root *os.File }

// remember makes the thread's root and working directory its own, as setns(2) into
// a mount namespace needs, and holds on to what they are.
func remember() (o origin, err error) {
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return o, fmt.Errorf("unshare: %w", err)
	}
	if o.mnt, err = os.Open("/proc/thread-self/ns/mnt"); err != nil {
		return o, err
	}
	if o.root, err = os.OpenFile("/", unix.O_PATH|unix.O_DIRECTORY, 0); err != nil {
		o.mnt.Close()
	}
	return o, err
}

func (o origin) restore() error {
	if err := unix.Setns(int(o.mnt.Fd()), unix.CLONE_NEWNS); err != nil {
		return err
	}
	// setns leaves the thread at the root of the namespace, which is not the root of
	// a process in a chroot.
	if err := unix.Fchdir(int(o.root.Fd())); err != nil {
		return err
	}
	return unix.Chroot(".")
}

func protect(fn func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v", p)
		}
	}()
	return fn()
}
