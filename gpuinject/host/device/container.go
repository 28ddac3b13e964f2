package device

import (
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/openat"
)

// FixError is what is wrong with a node, and what to do about it.
type FixError struct {
	Problem, Fix string
	// Err is fs.ErrNotExist for a missing node, otherwise nil.
	Err error
}

func (e *FixError) Error() string {
	text := e.Problem + ": " + e.Fix
	if e.Err != nil {
		text += ": " + e.Err.Error()
	}
	return text
}

func (e *FixError) Unwrap() error { return e.Err }

// IsContainer reports whether this host is itself a container: a node of the driver is a mount
// point, or process 1 is in a user namespace or may not make nodes. Nodes can then only be given to
// the container when it is started.
func IsContainer(cfg config.Host) bool {
	nodes, _ := filepath.Glob(filepath.Join(cfg.DevRoot, "dev/nvidia[0-9]*"))
	nodes = append(nodes, filepath.Join(cfg.DevRoot, "dev/nvidiactl"), filepath.Join(cfg.DevRoot, "dev/nvidia-uvm"))
	return slices.ContainsFunc(nodes, isMountPoint) || isInUserNamespace(cfg) || !mayMakeNodes(cfg)
}

func isMountPoint(name string) bool { return openat.IsMountPoint(unix.AT_FDCWD, name) }

// isInUserNamespace reports whether process 1 is in a user namespace: the initial one maps every id
// to itself.
func isInUserNamespace(cfg config.Host) bool {
	data, err := ReadFile(filepath.Join(cfg.ProcRoot, "1/uid_map"))
	fields := strings.Fields(string(data))
	return err == nil && len(fields) > 0 && !slices.Equal(fields, []string{"0", "0", "4294967295"})
}

// mayMakeNodes reports whether processes of this host can have CAP_MKNOD, by the bounding set of
// process 1.
func mayMakeNodes(cfg config.Host) bool {
	data, err := ReadFile(filepath.Join(cfg.ProcRoot, "1/status"))
	if err != nil {
		return true
	}
	caps, err := strconv.ParseUint(parseFields(data)["CapBnd"], 16, 64)
	return err != nil || caps&(1<<unix.CAP_MKNOD) != 0
}
