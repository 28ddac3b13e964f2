package shim

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"

	bootapi "github.com/containerd/containerd/api/runtime/bootstrap/v1"
	"github.com/containerd/containerd/api/types"
	"github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2/manager"
	ctrdshim "github.com/containerd/containerd/v2/pkg/shim"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/version"
)

// NewManager returns what containerd's shim library runs for `start`, `delete` and
// `-info`: the runc shim's own manager, with runtime options of any kind translated.
func NewManager() ctrdshim.Shim {
	return &shimManager{Shim: manager.NewShimManager(RuntimeName)}
}

type shimManager struct {
	ctrdshim.Shim
}

// Start starts the shim's server for a container or a pod.
func (m *shimManager) Start(ctx context.Context, params *bootapi.BootstrapParams) (*bootapi.BootstrapResult, error) {
	for _, ext := range params.GetExtensions() {
		if !isOptions(ext.GetValue()) {
			continue
		}
		opts, err := Translate(ext.GetValue())
		if err != nil {
			return nil, err
		}
		// The embedded manager looks for the type by its full name (proto FullName).
		if ext.Value, err = anypb.New(opts.Runc); err != nil {
			return nil, err
		}
	}
	result, err := m.Shim.Start(ctx, params)
	if err != nil {
		return nil, err
	}
	dir, err := os.Getwd() // the bundle
	if err != nil {
		return nil, err
	}
	if version := keptVersion(dir, params.GetInstanceID(), result.GetAddress()); version != 0 {
		result.Version = version
	}
	if err := writeAddress(dir, result.GetAddress()); err != nil {
		return nil, err
	}
	// Without this extension containerd 2.4 executes `shim -info` for every runtime
	// that is not runc's, to look for a deprecated annotation.
	if err := result.AddExtension(&types.MountCapabilities{}); err != nil {
		return nil, err
	}
	return result, nil
}

// isOptions tells an extension that carries runtime options from one of another
// purpose, which is none of ours.
func isOptions(any *anypb.Any) bool {
	_, err := Translate(&anypb.Any{TypeUrl: any.GetTypeUrl()})
	return err == nil && any.GetTypeUrl() != ""
}

// Info answers `-info`: the features of runc, where it is there.
func (m *shimManager) Info(ctx context.Context, r io.Reader) (*types.RuntimeInfo, error) {
	data, err := io.ReadAll(io.LimitReader(r, 10<<20))
	if err != nil {
		return nil, fmt.Errorf("read runtime options: %w", err)
	}
	var opts Options
	if len(data) > 0 {
		var any anypb.Any
		if err := proto.Unmarshal(data, &any); err != nil {
			return nil, fmt.Errorf("read runtime options: %w", err)
		}
		if opts, err = Translate(&any); err != nil {
			return nil, err
		}
		message, err := opts.message()
		if err != nil {
			return nil, err
		}
		if data, err = proto.Marshal(message); err != nil {
			return nil, err
		}
	}
	info, err := m.Shim.Info(ctx, bytes.NewReader(data))
	if err != nil {
		// runc is not there (yet): the shim is, and containerd asked for the shim
		// (containerd issue 13352).
		return &types.RuntimeInfo{Name: m.Name(), Version: &types.RuntimeVersion{Version: version.Version, Revision: version.Revision}}, nil
	}
	info.Version = &types.RuntimeVersion{Version: version.Version, Revision: version.Revision}
	return info, nil
}
