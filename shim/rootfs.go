package shim

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/log"
	"golang.org/x/sys/unix"
)

// mountRootfs mounts the container's root file system where the embedded service would mount it a
// moment later, and returns that directory. A second, temporary mount of the same writable
// snapshot would cost a sync of its file system when it is unmounted.
func mountRootfs(r *taskapi.CreateTaskRequest) (string, error) {
	if len(r.Rootfs) == 0 {
		return "", nil
	}
	root := filepath.Join(r.Bundle, "rootfs")
	if err := os.Mkdir(root, 0o711); err != nil && !errors.Is(err, os.ErrExist) {
		return "", err
	}
	mounts := mount.FromProto(r.Rootfs)
	if err := mount.All(mounts, root); err != nil {
		_ = mount.UnmountMounts(mounts, root, 0)
		return "", fmt.Errorf("failed to mount rootfs component: %w", err)
	}
	return root, nil
}

// unmountRootfs unmounts what mountRootfs mounted at root; nothing if root is empty. A failure is
// only logged: the embedded service no longer knows the container, so Delete cannot be repeated,
// and containerd unmounts what it finds in the bundle.
func unmountRootfs(ctx context.Context, root string) {
	if root == "" {
		return
	}
	err := mount.UnmountRecursive(root, 0)
	if err != nil {
		err = mount.UnmountRecursive(root, unix.MNT_DETACH)
	}
	if err != nil {
		log.G(ctx).WithError(err).Warn("failed to cleanup rootfs mount")
	}
}
