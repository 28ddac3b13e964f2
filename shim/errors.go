package shim

import (
	"errors"

	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject"
)

// classified is an error's text with its class, without the class in the text.
// It unwraps to the class alone: of an error with two branches errgrpc makes two
// details, which a client prints as lines of their own.
type classified struct{ err, class error }

func (e *classified) Error() string { return e.err.Error() }
func (e *classified) Unwrap() error { return e.class }

// toGRPC is the one place where errors of the injection get a gRPC code.
func toGRPC(err error) error {
	var e *gpuinject.Error
	if errors.As(err, &e) {
		var class error = errdefs.ErrInternal
		switch e.Kind {
		case gpuinject.Invalid:
			class = errdefs.ErrInvalidArgument
		case gpuinject.Precondition:
			class = errdefs.ErrFailedPrecondition
		case gpuinject.Denied:
			class = errdefs.ErrPermissionDenied
		case gpuinject.Internal:
		}
		err = &classified{err: err, class: class}
	}
	return errgrpc.ToGRPC(err)
}
