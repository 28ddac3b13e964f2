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
	switch {
	case !ok || c.ready || r.ExecID != "":
		return s.TTRPCTaskService.Start(ctx, r)
	case c.mask != nil:
		resp, err := s.startRestored(ctx, r, c)
		return resp, toGRPC(err)
	}
	err := fmt.Errorf("nvidia: container %s was not created completely and cannot be started", r.ID)
	return nil, toGRPC(&classified{err, errdefs.ErrFailedPrecondition})
}

// startRestored has runc restore the container from a checkpoint and attaches the mask, which
// Create cannot do: the container has no process before.
func (s *Service) startRestored(ctx context.Context, r *taskapi.StartRequest, c gpuContainer) (*taskapi.StartResponse, error) {
	resp, err := s.TTRPCTaskService.Start(ctx, r)
	if err != nil {
		return nil, err
	}
	if err = attachMask(c, int(resp.Pid)); err == nil {
		s.update(r.ID, gpuContainer{rootfs: c.rootfs, ready: true})
		return resp, nil
	}
	// A container that cannot be destroyed remains known and is not ready.
	s.update(r.ID, gpuContainer{rootfs: c.rootfs})
	if s.destroy(ctx, r.ID) {
		_ = unmountRootfs(ctx, c.rootfs)
		s.remove(r.ID)
	}
	return nil, err
}
