package shim

import (
	"errors"
	"fmt"
	"runtime/debug"

	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"github.com/containerd/log"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/verdict"
)

// classified is an error with a class of errdefs that is not part of its text. It unwraps to the
// class only: errgrpc turns an error with two branches into two details, which clients print on
// separate lines.
type classified struct{ err, class error }

func (e *classified) Error() string { return e.err.Error() }
func (e *classified) Unwrap() error { return e.class }

// classes are those of the kinds of refusals.
var classes = map[verdict.Kind]error{
	verdict.KindInternal: errdefs.ErrInternal, verdict.KindInvalid: errdefs.ErrInvalidArgument,
	verdict.KindPrecondition: errdefs.ErrFailedPrecondition, verdict.KindDenied: errdefs.ErrPermissionDenied,
}

// toGRPC returns err with a gRPC code. Errors of gpuinject get theirs by kind.
func toGRPC(err error) error {
	var e *verdict.Error
	if errors.As(err, &e) {
		err = &classified{err: err, class: classes[e.Kind]}
	}
	return errgrpc.ToGRPC(err)
}

// recovered is deferred. It turns a panic over hostile input into an error: this process manages
// every container of a pod.
func recovered(err *error) {
	if p := recover(); p != nil { // guard: shim: panics recovered
		log.L.Errorf("nvidia: panic: %v\n%s", p, debug.Stack())
		*err = fmt.Errorf("nvidia: internal error: %v: %w", p, errdefs.ErrInternal)
	}
}
