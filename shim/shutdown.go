package shim

import (
	"context"
	"time"

	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/log"
	"google.golang.org/protobuf/types/known/emptypb"
)

// shutdownDelay is how long after a Create or Delete a deferred Shutdown is made: the shim's end
// would cut the connection before the response is sent.
const shutdownDelay = 2 * time.Second

// Shutdown ends the shim unless it has containers or is creating one other than r names. The
// embedded service counts only created containers, so that in a group the Shutdown after the Delete
// of one container would end the shim during the Create of another. A daemon that names the
// container being created has given up on it.
//
// A Shutdown during the Create of another container is deferred until no Create is in progress and
// no container is left: containerd sends it once, after the Delete of a pod's sandbox.
func (s *Service) Shutdown(ctx context.Context, r *taskapi.ShutdownRequest) (*emptypb.Empty, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id := range s.creating {
		if id != r.ID {
			s.deferred = r
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
	delete(s.creating, id)
	s.mu.Unlock()
	s.resumeShutdown()
}

// resumeShutdown makes a deferred Shutdown after shutdownDelay, unless a Create is in progress
// then. The embedded service ignores it while it has containers, so Delete calls this as well.
func (s *Service) resumeShutdown() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.deferred == nil || len(s.creating) > 0 {
		return
	}
	time.AfterFunc(shutdownDelay, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if len(s.creating) > 0 {
			return
		}
		if _, err := s.TTRPCTaskService.Shutdown(context.Background(), s.deferred); err != nil {
			log.L.WithError(err).Warn("nvidia: deferred Shutdown")
		}
	})
}
