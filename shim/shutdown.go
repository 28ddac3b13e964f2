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

// Shutdown ends the shim unless it has containers. During a Create it is deferred until no Create
// is in progress and no container is left: containerd sends it once, after the Delete of a pod's
// sandbox, and the embedded service counts only containers that have been created. The Create of
// the container that r names is cancelled.
func (s *Service) Shutdown(ctx context.Context, r *taskapi.ShutdownRequest) (*emptypb.Empty, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.creating) == 0 { // guard: shim: no end during Create
		return s.TTRPCTaskService.Shutdown(ctx, r)
	}
	s.deferred = r // guard: shim: end after Create
	if cancel := s.creating[r.ID]; cancel != nil {
		cancel()
	}
	return &emptypb.Empty{}, nil
}

// beginCreate keeps the shim from being ended until end is called. The context that it returns is
// done as well if containerd gives up on the container.
func (s *Service) beginCreate(ctx context.Context, id string) (_ context.Context, end func()) {
	ctx, cancel := context.WithCancel(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.creating[id] = cancel
	s.used = true
	return ctx, func() {
		cancel()
		s.mu.Lock()
		delete(s.creating, id)
		s.mu.Unlock()
		s.resumeShutdown()
	}
}

// cancelCreate cancels the Create of this container, if one is in progress.
func (s *Service) cancelCreate(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if cancel := s.creating[id]; cancel != nil {
		cancel()
	}
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
