package shim

import (
	"context"
	"runtime/debug"
	"sync"

	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	runctask "github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2/task"
	ctrdshim "github.com/containerd/containerd/v2/pkg/shim"
	"github.com/containerd/containerd/v2/pkg/shutdown"
	"github.com/containerd/ttrpc"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/probe"
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
}

// gpuContainer is what Create keeps for the calls that follow.
type gpuContainer struct {
	// generation tells the container from an earlier one with its id.
	generation uint64
	state      containerState
	// rootfs is the mount that Create made and Delete removes. It is empty if containerd's
	// client made the mount.
	rootfs string
	// hasGPU reports whether GPUs were granted.
	hasGPU bool
	// checkpoints reports whether the container may be written to a checkpoint.
	checkpoints bool
	// suspendsGPU reports whether Pause gives the GPUs back.
	suspendsGPU bool
	// restoration is what Start restores the container with.
	restoration restoration
	bundle      string
	// addresses are the PCI addresses of the GPUs that it sees. There are none if it sees all.
	addresses []string
	// memory has its limits of GPU memory.
	memory gpuMemory
	// held is the GPU memory of the processes when they were suspended, while pausing is held.
	held probe.Memory
	// gpus are those among which Resume can move it.
	gpus []gpuinject.PlanGPU
	// placement is where the next Resume moves it: UUIDs by the UUID of the GPU that it was on. It
	// is nil if it stays.
	placement map[string]string
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
