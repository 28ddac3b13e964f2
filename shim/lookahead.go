package shim

import (
	"context"
	"os"
	"sync/atomic"

	"github.com/containerd/containerd/api/types/runc/options"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
)

// ahead is a look at the container that a shim was started for: the time between its
// start and the request to create, milliseconds in which the shim waits for containerd,
// is as long as the steps of a create take.
type ahead struct {
	done chan struct{}
	seen atomic.Pointer[gpuinject.Ahead]
}

type aheadKey struct{}

// lookAhead begins to look at the container of the bundle dir.
func lookAhead(ctx context.Context, dir string) context.Context {
	a := &ahead{done: make(chan struct{})}
	go func() {
		defer close(a.done)
		// What panics here panics again when it is asked for, where it is told.
		defer func() { _ = recover() }()
		// So that the first runc need not find out whether pidfds work.
		if p, err := os.FindProcess(os.Getpid()); err == nil {
			_ = p.Release()
		}
		a.seen.Store(gpuinject.LookAhead(dir, config.FromEnvironment))
		_, _ = Options{Runc: &options.Options{}}.message()
	}()
	return context.WithValue(ctx, aheadKey{}, a)
}

// take returns what was seen, to the first who asks.
func (a *ahead) take() *gpuinject.Ahead {
	if a == nil {
		return nil
	}
	<-a.done
	return a.seen.Swap(nil)
}
