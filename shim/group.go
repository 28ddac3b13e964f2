package shim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	bootapi "github.com/containerd/containerd/api/runtime/bootstrap/v1"
	"github.com/containerd/containerd/v2/defaults"
	ctrdshim "github.com/containerd/containerd/v2/pkg/shim"
	"golang.org/x/sys/unix"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/bundle"
)

// groupAnnotations name the group, usually a pod, whose containers share one shim, in the order
// in which the embedded manager reads them.
var groupAnnotations = []string{"io.containerd.runc.v2.group", "io.kubernetes.cri.sandbox-id"}

// taskVersion is the version of the Task API that is reported to containerd since 2.3, the same as
// by the embedded manager. Every shim of this runtime serves versions 2 and 3, whatever was
// reported.
const taskVersion = 3

// socketAddress returns the address of the shim for the container with the bundle dir: the one that
// the embedded manager uses.
func socketAddress(ctx context.Context, params *bootapi.BootstrapParams, dir string) (string, error) {
	socketDir := params.GetSocketDir()
	if socketDir == "" {
		socketDir = filepath.Join(defaults.DefaultStateDir, "s")
	}
	group, err := groupOf(dir, params.GetInstanceID())
	if err != nil {
		return "", err
	}
	return ctrdshim.CreateSocketAddress(ctx, socketDir, params.GetContainerdGrpcAddress(), group, false)
}

// joinGroup returns the running shim at address, or nil if there is none.
//
// The embedded manager does the same, but takes a running shim for dead if it cannot connect within
// 100 ms (CanConnect), whatever the reason: `start` may get no processor time, or no memory. Then
// it removes the shim's socket and starts a second one, and the next containerd that starts kills
// the containers of the first.
func joinGroup(address string) (*bootapi.BootstrapResult, error) {
	found, err := connects(strings.TrimPrefix(address, "unix://"))
	if err != nil {
		return nil, fmt.Errorf("look for the group's shim: %w", err)
	}
	if !found {
		return nil, nil
	}
	return &bootapi.BootstrapResult{Version: taskVersion, Protocol: "ttrpc", Address: address}, nil
}

// groupOf returns the group of the container id, whose bundle is dir: id itself if it has none.
func groupOf(dir, id string) (string, error) {
	// The embedded manager reports a file that is missing or invalid.
	raw, err := os.ReadFile(filepath.Join(dir, bundle.ConfigName))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	var spec struct {
		Annotations map[string]string `json:"annotations"`
	}
	_ = json.Unmarshal(raw, &spec)
	for _, name := range groupAnnotations {
		if group, ok := spec.Annotations[name]; ok {
			return group, nil
		}
	}
	return id, nil
}

// connects reports whether a process listens on the Unix socket path. connect(2) has no time
// limit; it waits while the queue of the listener is full.
func connects(path string) (bool, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return false, fmt.Errorf("socket: %w", err)
	}
	defer unix.Close(fd)
	for {
		err := unix.Connect(fd, &unix.SockaddrUnix{Name: path})
		switch {
		case err == nil:
			return true, nil
		case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ECONNREFUSED):
			return false, nil
		case !errors.Is(err, unix.EINTR):
			return false, fmt.Errorf("connect to %s: %w", path, err)
		}
	}
}
