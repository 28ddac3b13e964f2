package shim

import (
	"context"

	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
)

// Delete deletes the container and unmounts the root file system that Create mounted, as the
// embedded service does with one that it mounted itself.
func (s *Service) Delete(ctx context.Context, r *taskapi.DeleteRequest) (*taskapi.DeleteResponse, error) {
	resp, err := s.TTRPCTaskService.Delete(ctx, r)
	if err != nil || r.ExecID != "" {
		return resp, err
	}
	if c, ok := s.get(r.ID); ok {
		c.close()
		unmountRootfs(ctx, c.rootfs)
		s.remove(r.ID)
	}
	return resp, nil
}
