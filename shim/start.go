package shim

import (
	"context"
	"fmt"

	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/types/known/emptypb"
)

// Start starts the container, or a process in it, but never before its mask is attached (invariant
// I8).
func (s *Service) Start(ctx context.Context, r *taskapi.StartRequest) (*taskapi.StartResponse, error) {
	c, err := s.checkReady(r.ID)
	if err != nil {
		return nil, err
	}
	if c.restoration != nil && r.ExecID == "" {
		return s.restore(ctx, r, c)
	}
	return s.TTRPCTaskService.Start(ctx, r)
}

// Exec prepares a process in the container, which Start starts.
func (s *Service) Exec(ctx context.Context, r *taskapi.ExecProcessRequest) (*emptypb.Empty, error) {
	if _, err := s.checkReady(r.ID); err != nil {
		return nil, err
	}
	return s.TTRPCTaskService.Exec(ctx, r)
}

// checkReady returns an error if the container asks for GPUs and its mask is not attached.
func (s *Service) checkReady(id string) (gpuContainer, error) {
	c, ok := s.get(id)
	if ok && !c.ready {
		err := fmt.Errorf("nvidia: container %s was not created completely: no process can be started in it; delete it", id)
		return c, toGRPC(&classified{err, errdefs.ErrFailedPrecondition})
	}
	return c, nil
}
