package shim

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	bootapi "github.com/containerd/containerd/api/runtime/bootstrap/v1"
	"github.com/containerd/containerd/api/types"
	"github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2/manager"
	"github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2/process"
	"github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2/runc"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	ctrdshim "github.com/containerd/containerd/v2/pkg/shim"
	"github.com/containerd/log"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/procmask"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/version"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/shim/options"
)

// maxInput limits what is read from standard input, as containerd's shim library does.
const maxInput = 10 << 20

// newManager returns what containerd's shim library runs for `start`, `delete` and `-info`: the
// runc shim's own manager, with runtime options of any type translated.
func newManager() ctrdshim.Shim {
	return &shimManager{Shim: manager.NewShimManager(runtimeName)}
}

type shimManager struct {
	ctrdshim.Shim
}

// Start joins the running shim of the container's group or starts a new shim.
func (m *shimManager) Start(ctx context.Context, params *bootapi.BootstrapParams) (*bootapi.BootstrapResult, error) {
	for _, ext := range params.GetExtensions() {
		if !options.Is(ext.GetValue()) {
			continue
		}
		var err error
		if ext.Value, err = options.RuncMessage(ext.GetValue()); err != nil {
			return nil, err
		}
	}
	dir, err := os.Getwd() // the bundle
	if err != nil {
		return nil, err
	}
	address, err := socketAddress(ctx, params, dir)
	if err != nil {
		return nil, err
	}
	// Shims before 2.3 wrote this file: containerd 1.6 and 1.7 read it after a restart, and a shim
	// that ends removes the socket it names, which in a group may differ from the container's own.
	// It is written first, because nothing would end a shim whose `start` fails.
	if err := os.WriteFile(filepath.Join(dir, "address"), []byte(address), 0o644); err != nil {
		return nil, err
	}
	result, err := joinGroup(address)
	if err == nil && result == nil {
		result, err = m.Shim.Start(ctx, params)
	}
	if err != nil {
		_ = os.Remove(filepath.Join(dir, "address"))
		return nil, err
	}
	// Without this extension containerd 2.4 executes `shim -info` for every runtime other than
	// runc's, to look for a deprecated annotation.
	if err := result.AddExtension(&types.MountCapabilities{}); err != nil {
		return nil, err
	}
	return result, nil
}

// Stop cleans up after a shim that was killed, perhaps while it restored the container.
func (m *shimManager) Stop(ctx context.Context, id string) (ctrdshim.StopStatus, error) {
	dir, err := os.Getwd()
	if err != nil {
		return ctrdshim.StopStatus{}, err
	}
	dir = filepath.Join(filepath.Dir(dir), id)
	procmask.Unmount(filepath.Join(dir, restoredMask))
	if err := takeBackMemoryOf(ctx, id); err != nil {
		log.G(ctx).WithError(err).Warn("nvidia: delete a container")
	}
	status, err := m.Shim.Stop(ctx, id)
	if err != nil {
		return status, err
	}
	return status, runcDeleted(ctx, dir, id)
}

// runcDeleted returns an error if runc still has the container. In that case the embedded manager
// reports success, and containerd removes the bundle of a container that runs on.
func runcDeleted(ctx context.Context, dir, id string) error {
	opts, err := runc.ReadOptions(dir)
	if err != nil {
		return err
	}
	namespace, err := namespaces.NamespaceRequired(ctx)
	if err != nil {
		return err
	}
	state := filepath.Join(cmp.Or(opts.GetRoot(), process.RuncRoot), namespace, id)
	if _, err := os.Lstat(state); !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("container %s was not deleted: runc still has %s: restart containerd to try again", id, state)
	}
	return nil
}

// Info answers `-info` with the features of runc, if runc is installed.
func (m *shimManager) Info(ctx context.Context, r io.Reader) (*types.RuntimeInfo, error) {
	input, err := runcMessage(r)
	if err != nil {
		return nil, err
	}
	info, err := m.Shim.Info(ctx, bytes.NewReader(input))
	if err != nil {
		// runc may not be installed yet; containerd asked about the shim (containerd issue 13352).
		info = &types.RuntimeInfo{Name: m.Name()}
	}
	info.Version = &types.RuntimeVersion{Version: version.Version, Revision: version.Revision}
	return info, nil
}

// runcMessage reads a message with runtime options of any type and returns it with runc's
// options. An empty input remains empty.
func runcMessage(r io.Reader) ([]byte, error) {
	data, err := io.ReadAll(io.LimitReader(r, maxInput))
	if err != nil {
		return nil, fmt.Errorf("read runtime options: %w", err)
	}
	if len(data) == 0 {
		return nil, nil
	}
	var message anypb.Any
	if err := proto.Unmarshal(data, &message); err != nil {
		return nil, fmt.Errorf("read runtime options: %w", err)
	}
	translated, err := options.RuncMessage(&message)
	if err != nil {
		return nil, err
	}
	return proto.Marshal(translated)
}
