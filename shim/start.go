package shim

import (
	"context"

	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	"google.golang.org/protobuf/types/known/emptypb"
)

// Start starts the container, or a process in it, but never before its mask is attached (invariant
// I8), nor outside the cgroup whose GPU memory is limited.
func (s *Service) Start(ctx context.Context, r *taskapi.StartRequest) (*taskapi.StartResponse, error) {
	what := callStart
	if r.ExecID != "" {
		what = callStartExec
	}
	c := s.get(r.ID)
	does, err := c.permit(what, r.ID)
	if does == acts {
		s.pausing.Lock()
		defer s.pausing.Unlock()
		c = s.get(r.ID) // another Start may have restored it meanwhile
		does, err = c.permit(what, r.ID)
	}
	if err != nil {
		return nil, toGRPC(err)
	}
	if does == acts {
		return s.restore(ctx, r, c)
	}
	if what == callStart && len(c.memory.limits) > 0 {
		return s.startLimited(ctx, r)
	}
	return s.TTRPCTaskService.Start(ctx, r)
}

// Exec prepares a process in the container, which Start starts.
func (s *Service) Exec(ctx context.Context, r *taskapi.ExecProcessRequest) (*emptypb.Empty, error) {
	if _, err := s.get(r.ID).permit(callExec, r.ID); err != nil { // guard: shim: no exec without mask
		return nil, toGRPC(err)
	}
	return s.TTRPCTaskService.Exec(ctx, r)
}
