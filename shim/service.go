package shim

import (
	"context"
	"runtime/debug"
	"sync"
	"time"

	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/containerd/api/types/task"
	runctask "github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2/task"
	ctrdshim "github.com/containerd/containerd/v2/pkg/shim"
	"github.com/containerd/containerd/v2/pkg/shutdown"
	"github.com/containerd/log"
	"github.com/containerd/ttrpc"
)

// runtimeName is the name that containerd knows this shim by.
const runtimeName = "io.containerd.nvidia.v2"

// Service is the Task service of the shim. Calls that it does not override go to the embedded
// service.
type Service struct {
	taskapi.TTRPCTaskService

	events *taskEvents

	mu sync.Mutex
	// containers holds the containers with GPUs, by id.
	containers map[string]gpuContainer
	// generation is that of the last container.
	generation uint64
	// creating cancels each Create that is in progress, by the container's id.
	creating map[string]context.CancelFunc
	// deferred is the last Shutdown that came during a Create, or nil.
	deferred *taskapi.ShutdownRequest
	// used reports whether a Create has come.
	used bool

	// pausing is held while a container is suspended or resumed.
	pausing sync.Mutex
	// limiting is held while limits of GPU memory are changed or taken back, or a container with limits
	// is started. Its holder does not wait for pausing.
	limiting sync.Mutex
}

// memoryLimit is the soft limit of the memory that Go manages, in bytes. A shim needs a tenth of it
// unless a bundle is hostile; then Go collects garbage more often instead of growing.
const memoryLimit = 48 << 20

// NewService returns the Task service, with containerd's own embedded.
func NewService(ctx context.Context, publisher ctrdshim.Publisher, sd shutdown.Service) (*Service, error) {
	debug.SetMemoryLimit(memoryLimit) // guard: shim: soft limit of memory
	events := &taskEvents{Publisher: publisher}
	embedded, err := runctask.NewTaskService(ctx, events, sd)
	if err != nil {
		return nil, err
	}
	s := newService(embedded, events)
	s.endUnused()
	startLimit(ctx).Stop() // guard: shim: no end by the limit of a start
	return s, nil
}

func newService(embedded taskapi.TTRPCTaskService, events *taskEvents) *Service {
	return &Service{
		TTRPCTaskService: embedded, events: events,
		containers: map[string]gpuContainer{}, creating: map[string]context.CancelFunc{},
	}
}

// RegisterTTRPC registers this service for daemons of every version. The embedded service would
// register itself.
func (s *Service) RegisterTTRPC(server *ttrpc.Server) error {
	taskapi.RegisterTTRPCTaskService(server, s)
	registerV2(server, s)
	return nil
}

// get returns the container with this id. Its state is unknown if no container with GPUs has it.
func (s *Service) get(id string) gpuContainer {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.containers[id]
}

// reserve registers a container that is being created.
func (s *Service) reserve(id string) (gpuContainer, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, err := s.containers[id].permit(callCreate, id); err != nil {
		return gpuContainer{}, err
	}
	s.generation++
	s.containers[id] = gpuContainer{generation: s.generation, state: creating}
	return s.containers[id], nil
}

// update replaces the container with this id, unless Delete has removed it, even if Create has made
// another one since. It reports whether it did.
func (s *Service) update(id string, c gpuContainer) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	current := s.containers[id].generation == c.generation // guard: shim: a later container kept
	if current {
		s.containers[id] = c
	}
	return current
}

// isCurrent reports whether c, possibly changed, is the container with this id.
func (s *Service) isCurrent(id string, c gpuContainer) bool {
	return s.get(id).generation == c.generation // guard: shim: a later container not suspended
}

func (s *Service) remove(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.containers, id)
}

// status returns the state of the container: "stopped" if the embedded service does not know it.
func (s *Service) status(ctx context.Context, id string) task.Status {
	state, err := s.State(ctx, &taskapi.StateRequest{ID: id})
	if err != nil {
		return task.Status_STOPPED
	}
	return state.Status
}

// endUnused ends the shim after unusedLimit unless it is used by then.
func (s *Service) endUnused() {
	time.AfterFunc(unusedLimit, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.used { // guard: shim: end without a Create
			return
		}
		if _, err := s.TTRPCTaskService.Shutdown(context.Background(), &taskapi.ShutdownRequest{}); err != nil {
			log.L.WithError(err).Warn("nvidia: end of an unused shim")
		}
	})
}
