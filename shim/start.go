package shim

import (
	"context"
	"fmt"

	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/errdefs"
)

// Start starts the container, but never before its mask is attached (invariant I8).
func (s *Service) Start(ctx context.Context, r *taskapi.StartRequest) (*taskapi.StartResponse, error) {
	c, ok := s.get(r.ID)
	if ok && !c.ready && r.ExecID == "" {
		err := fmt.Errorf("nvidia: container %s was not created completely and cannot be started", r.ID)
		return nil, toGRPC(&classified{err, errdefs.ErrFailedPrecondition})
	}
	if c.restoration != nil && r.ExecID == "" {
		return s.restore(ctx, r, c)
	}
	return s.TTRPCTaskService.Start(ctx, r)
}
