package mountns

import (
	"fmt"
	"os"
	"runtime"
	"sync"

	"golang.org/x/sys/unix"
)

type job struct {
	fn     func() error
	result chan error
}

var (
	jobs  = make(chan job)
	start = sync.OnceFunc(func() { go work() })
)

// Do runs fn on the thread and returns fn's error. Afterwards it restores the thread's mount
// namespace and root; fn must undo any other change to the thread. A panic of fn is returned as an
// error, because on this goroutine it would end the process. Functions run one after another, so fn
// must not call Do.
func Do(fn func() error) error {
	start()
	j := job{fn, make(chan error, 1)}
	jobs <- j
	return <-j.result
}

// work runs functions on the thread of this goroutine, which is used for nothing else.
func work() {
	runtime.LockOSThread()
	if unix.Gettid() == unix.Getpid() {
		replace()
	}
	home, err := currentNamespace()
	if err != nil {
		j := <-jobs
		j.result <- fmt.Errorf("a thread for mount namespaces: %w", err)
		replace()
	}
	for {
		j := <-jobs
		result := protect(j.fn)
		err := home.enter() // guard: shim: thread back from the container
		if err != nil {
			home.mnt.Close()
			home.root.Close()
		}
		j.result <- result
		if err != nil {
			replace()
		}
	}
}

// replace lets another thread run the functions from now on. It does not return: this goroutine
// keeps its thread, which must neither be used nor end.
func replace() {
	go work()
	select {}
}

// namespace is a mount namespace with a root directory in it.
type namespace struct{ mnt, root *os.File }

// currentNamespace unshares the thread's root and working directory, as setns(2) into a mount
// namespace requires, and returns the thread's namespace.
func currentNamespace() (n namespace, err error) {
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return n, fmt.Errorf("unshare: %w", err)
	}
	if n.mnt, err = os.Open("/proc/thread-self/ns/mnt"); err != nil {
		return n, err
	}
	if n.root, err = os.OpenFile("/", unix.O_PATH|unix.O_DIRECTORY, 0); err != nil {
		n.mnt.Close()
	}
	return n, err
}

func (n namespace) enter() error {
	if err := unix.Setns(int(n.mnt.Fd()), unix.CLONE_NEWNS); err != nil {
		return err
	}
	// setns leaves the thread at the root of the namespace, which is not the root of a process in a
	// chroot.
	if err := unix.Fchdir(int(n.root.Fd())); err != nil {
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
