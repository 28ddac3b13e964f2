//go:build cgo

package nvml

import (
	"cmp"
	"fmt"
	"runtime"

	"github.com/NVIDIA/go-nvml/pkg/dl"
	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
)

// isolated runs fn, which may still make the calls in allowed, on a thread that ends afterwards.
func isolated(host config.Host, allowed []uint32, fn func() error) (err error) {
	return onThreads(host, allowed, 1, func(threads chan<- func()) error { return on(threads, fn) })
}

// on runs fn on one of threads and waits for it.
func on(threads chan<- func(), fn func() error) error {
	done := make(chan error, 1)
	threads <- func() { done <- fn() }
	return <-done
}

// onThreads makes n isolated threads that run the functions sent to them, which may still make the
// calls in allowed, until fn has returned.
func onThreads(host config.Host, allowed []uint32, n int, fn func(threads chan<- func()) error) error {
	threads := make(chan func())
	defer close(threads)
	ready := make(chan error, n)
	for range n {
		go func() {
			// Never unlocked: the thread cannot regain its rights, and ends with this function.
			runtime.LockOSThread()
			ready <- useDevRoot(host.DevRoot)
			for f := range threads {
				f()
			}
		}()
	}
	var err error
	for range n {
		err = cmp.Or(err, <-ready)
	}
	if err == nil {
		err = denyAllBut(allowed)
	}
	if err != nil {
		return err
	}
	return fn(threads)
}

// opened runs fn with NVML open on one of threads, or without threads on this one. It does not close
// NVML if fn says that a call hangs: nvmlShutdown might hang as well.
func opened(path string, threads chan<- func(), fn func(nvml.Interface) (hangs bool, err error)) error {
	run := func(fn func() error) error { return fn() }
	if threads != nil {
		run = func(fn func() error) error { return on(threads, fn) }
	}
	l := nvml.New(nvml.WithLibraryPath(path))
	// Loaded here first, because go-nvml does not return the reason why a library cannot be loaded.
	first := dl.New(path, dl.RTLD_LAZY|dl.RTLD_GLOBAL)
	err := run(func() error {
		if err := first.Open(); err != nil {
			return fmt.Errorf("load NVML: %w", err)
		}
		if ret := l.Init(); ret != nvml.SUCCESS {
			_ = first.Close()
			return fmt.Errorf("NVML cannot be initialized: %s (%s; nvidia-smi on this host should report the same)", text(ret), path)
		}
		return nil
	})
	if err != nil {
		return err
	}
	hangs, err := fn(l)
	if !hangs {
		_ = run(func() error {
			_ = l.Shutdown()
			return first.Close()
		})
	}
	return err
}
