package shim

import (
	"context"
	"encoding/json"
	"errors"
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
	return ctrdshim.CreateSocketAddress(ctx, socketDir, params.GetContainerdGrpcAddress(), groupOf(dir, params.GetInstanceID()), false)
}

// joinGroup returns the running shim at address, or nil if there is none.
//
// The embedded manager does the same, but allows 100 ms for the connection (CanConnect). If
// `start` itself gets no processor time for that long, the manager takes a running shim for dead,
// removes its socket and starts a second one.
func joinGroup(address string) *bootapi.BootstrapResult {
	if !connects(strings.TrimPrefix(address, "unix://")) {
		return nil
	}
	return &bootapi.BootstrapResult{Version: taskVersion, Protocol: "ttrpc", Address: address}
}

// groupOf returns the group of the container id, whose bundle is dir: id itself if it has none.
func groupOf(dir, id string) string {
	// The embedded manager reports a file that is missing or invalid.
	raw, _ := os.ReadFile(filepath.Join(dir, bundle.ConfigName))
	var spec struct {
		Annotations map[string]string `json:"annotations"`
	}
	_ = json.Unmarshal(raw, &spec)
	for _, name := range groupAnnotations {
		if group, ok := spec.Annotations[name]; ok {
			return group
		}
	}
	return id
}

// connects reports whether a process listens on the Unix socket path. connect(2) has no time
// limit; it waits while the queue of the listener is full.
func connects(path string) bool {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	for {
		err := unix.Connect(fd, &unix.SockaddrUnix{Name: path})
		if !errors.Is(err, unix.EINTR) {
			return err == nil
		}
	}
}
