package shim

import (
	"context"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// unusedLimit is how long a shim waits to be started, and then for its first Create, which
// containerd sends as soon as `start` has answered. If containerd is interrupted meanwhile, or its
// client gives up, it does not know the shim that `start` has left.
const unusedLimit = time.Minute

// startLimitKey is the key of withStartLimit's timer.
type startLimitKey struct{}

// withStartLimit returns a context with a timer that calls exit after unusedLimit, unless it is
// stopped: before it makes the service, containerd's library opens the bundle's "log", a FIFO, and
// waits, whatever becomes of the context, until containerd reads it. The shim's socket is removed,
// which exit would leave.
func withStartLimit(ctx context.Context, socket string, exit func(code int)) context.Context {
	return context.WithValue(ctx, startLimitKey{}, time.AfterFunc(unusedLimit, func() {
		_ = os.Remove(socket)
		exit(1) // guard: shim: end without a reader of its log
	}))
}

// startLimit is the timer of withStartLimit, or one that has no effect.
func startLimit(ctx context.Context) *time.Timer {
	if timer, ok := ctx.Value(startLimitKey{}).(*time.Timer); ok {
		return timer
	}
	return time.NewTimer(0)
}

// socketDescriptor is where `start` passes its socket to the shim that it leaves.
const socketDescriptor = 3

// socketAt is the path of the Unix socket fd, "" if it is none.
func socketAt(fd int) string {
	address, _ := unix.Getsockname(fd)
	if unixAddress, ok := address.(*unix.SockaddrUnix); ok {
		return unixAddress.Name
	}
	return ""
}
