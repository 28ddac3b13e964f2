package shim

import (
	"context"
	"sync"

	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	runctask "github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2/task"
	ctrdshim "github.com/containerd/containerd/v2/pkg/shim"
	"github.com/containerd/containerd/v2/pkg/shutdown"
	"github.com/containerd/ttrpc"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
)

// RuntimeName is the runtime that containerd knows this shim by.
const RuntimeName = "io.containerd.nvidia.v2"

// Service is the Task service of the shim.
type Service struct {
	taskapi.TTRPCTaskService

	load   func() (*config.Config, error)
	events *createEvents
	tidy   tidy
	ahead  *ahead

	mu sync.Mutex
	// containers are those that got the driver, by id.
	containers map[string]*gpuContainer
}

// gpuContainer is what Create leaves to Start and Delete.
type gpuContainer struct {
	// rootfs is the mount that Create made and Delete takes away; empty where
	// containerd's client mounted it.
	rootfs string
	// ready is set once the container may be started: the mask is attached.
	ready bool
	// restore holds what is still to be attached to a container that Start restores
	// from a checkpoint; nil otherwise.
	restore *gpuinject.Injection
}

// NewService returns the Task service, with containerd's own embedded.
func NewService(ctx context.Context, publisher ctrdshim.Publisher, sd shutdown.Service) (*Service, error) {
	events := &createEvents{Publisher: publisher}
	inner, err := runctask.NewTaskService(ctx, events, sd)
	if err != nil {
		return nil, err
	}
	ahead, _ := ctx.Value(aheadKey{}).(*ahead)
	return &Service{
		TTRPCTaskService: inner, load: config.FromEnvironment, events: events, ahead: ahead,
		containers: map[string]*gpuContainer{},
	}, nil
}

// RegisterTTRPC registers this service, for daemons of every version. The embedded
// one would register itself.
func (s *Service) RegisterTTRPC(server *ttrpc.Server) error {
	taskapi.RegisterTTRPCTaskService(server, s)
	registerV2(server, s)
	return nil
}

func (s *Service) get(id string) *gpuContainer {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.containers[id]
}

func (s *Service) put(id string, c *gpuContainer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c == nil {
		delete(s.containers, id)
		return
	}
	s.containers[id] = c
}
