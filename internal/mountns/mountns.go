package mountns

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
