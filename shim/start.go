package shim

import (
	"context"

	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/errdefs"
)

// Start starts the container, but never one whose mask is not in place (invariant
// I8). A container that runc restores from a checkpoint gets its mask here: it has
// no process before.
func (s *Service) Start(ctx context.Context, r *taskapi.StartRequest) (*taskapi.StartResponse, error) {
	c := s.get(r.ID)
	if c == nil || r.ExecID != "" {
		return s.TTRPCTaskService.Start(ctx, r)
	}
	s.mu.Lock()
	ready, restore := c.ready, c.restore
	s.mu.Unlock()
	if !ready && restore == nil {
		return nil, toGRPC(&classified{errNotReady(r.ID), errdefs.ErrFailedPrecondition})
	}
	resp, err := s.TTRPCTaskService.Start(ctx, r)
	if err != nil || ready {
		return resp, err
	}
	err = guard(func() error { return restore.Attach(int(resp.Pid)) })
	restore.Close()
	s.mu.Lock()
	c.ready, c.restore = err == nil, nil
	s.mu.Unlock()
	if err == nil {
		return resp, nil
	}
	if s.destroy(ctx, r.ID) {
		_ = unmountRootfs(ctx, c)
		s.put(r.ID, nil)
	}
	return nil, toGRPC(err)
}

type errNotReady string

func (e errNotReady) Error() string {
	return "nvidia: container " + string(e) + " was not created completely and cannot be started"
}
