package shim

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"time"

	"github.com/containerd/log"
	"golang.org/x/sys/unix"
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
