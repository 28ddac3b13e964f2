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

// taskVersion is the version of the Task API that daemons since 2.3 are told, as by the embedded
// manager. Every shim of this runtime serves versions 2 and 3, whatever its daemon was told.
const taskVersion = 3

// joinGroup returns the running shim of the group that the container of the bundle dir belongs
// to, or nil if there is none.
//
// The embedded manager does the same, but allows 100 ms for the connection (CanConnect). If
// `start` itself gets no processor time for that long, the manager takes a running shim for dead,
// removes its socket and starts a second one.
func joinGroup(ctx context.Context, params *bootapi.BootstrapParams, dir string) (*bootapi.BootstrapResult, error) {
	group := groupOf(dir)
	if group == "" {
		return nil, nil
	}
	socketDir := params.GetSocketDir()
	if socketDir == "" {
		socketDir = filepath.Join(defaults.DefaultStateDir, "s")
	}
	address, err := ctrdshim.CreateSocketAddress(ctx, socketDir, params.GetContainerdGrpcAddress(), group, false)
	if err != nil {
		return nil, err
	}
	if !connects(strings.TrimPrefix(address, "unix://")) {
		return nil, nil
	}
	return &bootapi.BootstrapResult{Version: taskVersion, Protocol: "ttrpc", Address: address}, nil
}

// groupOf returns the group of the container of the bundle dir, or "" if it has none.
func groupOf(dir string) string {
	raw, err := os.ReadFile(filepath.Join(dir, bundle.ConfigName))
	if err != nil {
		return ""
	}
	var spec struct {
		Annotations map[string]string `json:"annotations"`
	}
	_ = json.Unmarshal(raw, &spec) // the embedded manager reports an invalid file
	for _, name := range groupAnnotations {
		if group, ok := spec.Annotations[name]; ok {
			return group
		}
	}
	return ""
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
