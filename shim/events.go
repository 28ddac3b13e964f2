package shim

import (
	"context"
	"sync"
	"time"

	eventsapi "github.com/containerd/containerd/api/events"
	"github.com/containerd/containerd/api/types"
	"github.com/containerd/containerd/v2/core/events"
	ctrdshim "github.com/containerd/containerd/v2/pkg/shim"
)

// exitLimit is how long Delete waits for the TaskExit event of a container.
const exitLimit = time.Second

// taskEvents follows the events that the embedded service publishes.
type taskEvents struct {
	ctrdshim.Publisher
	rootfs sync.Map // container id to []*types.Mount, until TaskCreate
	exits  sync.Map // container id to chan struct{}, which is closed at TaskExit of the init process
}

// Publish forwards the event. It adds the mounts of the root file system to TaskCreate: if Create
// made them itself, the embedded service does not know them.
func (p *taskEvents) Publish(ctx context.Context, topic string, event events.Event) error {
	switch e := event.(type) {
	case *eventsapi.TaskCreate:
		if mounts, ok := p.rootfs.LoadAndDelete(e.ContainerID); ok {
			e.Rootfs = mounts.([]*types.Mount)
		}
	case *eventsapi.TaskExit:
		if e.ID != e.ContainerID {
			break // of another process of the container
		}
		if exited, ok := p.exits.LoadAndDelete(e.ContainerID); ok {
			close(exited.(chan struct{}))
		}
	}
	return p.Publisher.Publish(ctx, topic, event)
}

// waitExit waits for the TaskExit event of the container's init process, for exitLimit at most.
//
// The embedded service reports a process as exited first, writes exit.json into the bundle then,
// and publishes the event last. A client that waits for the exit can delete the container in
// between. containerd then removes a bundle that is being written to, and a part of it stays.
func (p *taskEvents) waitExit(id string) {
	if exited, ok := p.exits.Load(id); ok {
		select {
		case <-exited.(chan struct{}):
		case <-time.After(exitLimit):
		}
	}
}
