package main

import (
	"context"

	ctrdshim "github.com/containerd/containerd/v2/pkg/shim"
	"github.com/containerd/containerd/v2/pkg/shutdown"
	"github.com/containerd/containerd/v2/plugins"
	"github.com/containerd/plugin"
	"github.com/containerd/plugin/registry"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/shim"
)

// The registration follows containerd's runc shim (task/plugin), which cannot be imported: the
// registry allows only one plugin of this name.
func init() {
	registry.Register(&plugin.Registration{
		Type:     plugins.TTRPCPlugin,
		ID:       "task",
		Requires: []plugin.Type{plugins.EventPlugin, plugins.InternalPlugin},
		InitFn: func(ic *plugin.InitContext) (any, error) {
			publisher, err := ic.GetByID(plugins.EventPlugin, "publisher")
			if err != nil {
				return nil, err
			}
			sd, err := ic.GetByID(plugins.InternalPlugin, "shutdown")
			if err != nil {
				return nil, err
			}
			return shim.NewService(ic.Context, publisher.(ctrdshim.Publisher), sd.(shutdown.Service))
		},
	})
}

func main() {
	shim.Run(context.Background())
}
