package shim

import (
	"context"
	"sync"

	eventsapi "github.com/containerd/containerd/api/events"
	"github.com/containerd/containerd/api/types"
	"github.com/containerd/containerd/v2/core/events"
	ctrdshim "github.com/containerd/containerd/v2/pkg/shim"
)

// createEvents adds the mounts of the root file system to TaskCreate events. If Create made them
// itself, the embedded service does not know them.
type createEvents struct {
	ctrdshim.Publisher
	rootfs sync.Map // container id to []*types.Mount
}

// Publish forwards the event.
func (p *createEvents) Publish(ctx context.Context, topic string, event events.Event) error {
	if e, ok := event.(*eventsapi.TaskCreate); ok {
		if mounts, ok := p.rootfs.LoadAndDelete(e.ContainerID); ok {
			e.Rootfs = mounts.([]*types.Mount)
		}
	}
	return p.Publisher.Publish(ctx, topic, event)
}
