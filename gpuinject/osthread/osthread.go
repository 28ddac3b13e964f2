// Package osthread runs a function on an operating system thread that is thrown
// away afterwards, for system calls that change what a thread is: its mount
// namespace, its root directory.
//
// It must never give such a thread back to the Go scheduler, and never use the
// main thread, whose namespaces are what /proc/PID of the whole process shows.
package osthread

import (
	"fmt"
	"runtime"

	"golang.org/x/sys/unix"
)

// Do runs fn on a thread of its own that ends with it and returns fn's error.
// fn must not start goroutines that rely on the thread. A panic of fn is an error:
// on a goroutine that nobody recovers it would end the process.
func Do(fn func() error) error {
	result := make(chan error, 1)
	go run(fn, result)
	return <-result
}

func run(fn func() error, result chan<- error) {
	// Never unlocked: the runtime ends the thread with the goroutine.
	runtime.LockOSThread()
	if unix.Gettid() != unix.Getpid() {
		result <- protect(fn)
		return
	}
	// This goroutine sits on the main thread, which cannot be thrown away. While
	// it is locked here another goroutine runs on another thread.
	defer runtime.UnlockOSThread()
	done := make(chan error, 1)
	go run(fn, done)
	result <- <-done
}

func protect(fn func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v", p)
		}
	}()
	return fn()
}
