package shim

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/verdict"
)

func TestToGRPC(t *testing.T) {
	for _, tc := range []struct {
		name string
		err  error
		want error
		text string
	}{
		{"an invalid request", &verdict.Error{Kind: verdict.KindInvalid, Err: errors.New("a")}, errdefs.ErrInvalidArgument, "nvidia: a"},
		{"a precondition of the host", &verdict.Error{Kind: verdict.KindPrecondition, Err: errors.New("b")}, errdefs.ErrFailedPrecondition, "nvidia: b"},
		{"a denied request", &verdict.Error{Kind: verdict.KindDenied, Err: errors.New("c")}, errdefs.ErrPermissionDenied, "nvidia: c"},
		{"an internal error", &verdict.Error{Kind: verdict.KindInternal, Err: errors.New("d")}, errdefs.ErrInternal, "nvidia: d"},
		{"a wrapped error", fmt.Errorf("create: %w", &verdict.Error{Kind: verdict.KindDenied, Err: errors.New("e")}), errdefs.ErrPermissionDenied, "create: nvidia: e"},
		{"an error of containerd's", fmt.Errorf("f: %w", errdefs.ErrNotFound), errdefs.ErrNotFound, "f: not found"},
		{"a cancelled request", context.Canceled, context.Canceled, "context canceled"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := errgrpc.ToNative(toGRPC(tc.err))
			if !errors.Is(got, tc.want) || got.Error() != tc.text {
				t.Errorf("got %q, want %q with the code of %q", got, tc.text, tc.want)
			}
		})
	}
	if err := toGRPC(nil); err != nil {
		t.Errorf("no error became %v", err)
	}
}

func TestAPanicBecomesAnError(t *testing.T) {
	err := func() (err error) {
		defer recovered(&err)
		panic("hostile input")
	}()
	if !errors.Is(err, errdefs.ErrInternal) {
		t.Errorf("got %v", err)
	}
}
