package shim

import (
	"context"

	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	"google.golang.org/protobuf/types/known/emptypb"
)

// Shutdown ends the shim unless it has containers or is creating one other than r names. The
// embedded service counts only created containers, so that in a group the Shutdown after the Delete
// of one container would end the shim during the Create of another. A daemon that names the
// container being created has given up on it.
func (s *Service) Shutdown(ctx context.Context, r *taskapi.ShutdownRequest) (*emptypb.Empty, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id := range s.creating {
		if id != r.ID {
			return &emptypb.Empty{}, nil
		}
	}
	return s.TTRPCTaskService.Shutdown(ctx, r)
}

// beginCreate keeps the shim from being ended by the Shutdown of another container until
// endCreate.
func (s *Service) beginCreate(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.creating[id] = true
}

func (s *Service) endCreate(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.creating, id)
}
