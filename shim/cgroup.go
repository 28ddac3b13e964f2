package shim

import (
	"context"
	"encoding/json"
	"errors"
	"path/filepath"
	"strings"
	"time"

	"github.com/containerd/log"
	"golang.org/x/sys/unix"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject"
)

// cgroupRoot is the hierarchy of cgroup v2, or has those of v1 in directories.
var cgroupRoot = "/sys/fs/cgroup"

// cgroupLimit is how long removeCgroup waits for the processes of a runc that was killed to end.
const cgroupLimit = 10 * time.Second

// removeCgroup removes the empty cgroup of a container whose runc was killed, possibly before it
// had recorded the container. path is that of config.json. systemd removes its own cgroups, and a
// relative path is below a cgroup that only runc knows.
func removeCgroup(ctx context.Context, path string) {
	if !strings.HasPrefix(path, "/") || filepath.Clean(path) == "/" {
		return
	}
	tops, _ := filepath.Glob(cgroupRoot + "/*")
	var st unix.Statfs_t
	if unix.Statfs(cgroupRoot, &st) == nil && st.Type == unix.CGROUP2_SUPER_MAGIC {
		tops = []string{cgroupRoot}
	}
	for end := time.Now().Add(cgroupLimit); ; time.Sleep(5 * time.Millisecond) {
		var busy []string
		for _, top := range tops {
			if err := unix.Rmdir(filepath.Join(top, filepath.Clean(path))); errors.Is(err, unix.EBUSY) {
				busy = append(busy, top)
			}
		}
		if tops = busy; len(tops) == 0 {
			return
		}
		if time.Now().After(end) {
			log.G(ctx).Warnf("nvidia: cgroup %s of a container that was not created has processes", path)
			return
		}
	}
}

// cgroupsPath returns the container's cgroup path in config.json. An invalid file has none: runc
// reports it.
func cgroupsPath(c gpuinject.Container) string {
	if c.Bundle != nil {
		return c.Bundle.Spec.Linux.CgroupsPath
	}
	var spec struct {
		Linux struct {
			CgroupsPath string `json:"cgroupsPath"`
		} `json:"linux"`
	}
	_ = json.Unmarshal(c.Raw, &spec)
	return spec.Linux.CgroupsPath
}

// systemdUnit reports whether a cgroup path names a systemd unit, "slice:prefix:name". runc with
// the wrong cgroup driver fails, or puts the container into a cgroup of that literal name outside
// its pod's (runc libcontainer/specconv, specconvCgroupsPath; gVisor issue 13301).
func systemdUnit(cgroupsPath string) bool {
	parts := strings.Split(cgroupsPath, ":")
	return len(parts) == 3 && (parts[0] == "" || strings.HasSuffix(parts[0], ".slice"))
}
