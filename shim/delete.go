package shim

import (
	"context"

	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
)

// Delete deletes the container and unmounts the root file system that Create mounted, as the
// embedded service does with one that it mounted itself.
func (s *Service) Delete(ctx context.Context, r *taskapi.DeleteRequest) (*taskapi.DeleteResponse, error) {
	c, ok := s.get(r.ID)
	if !ok || r.ExecID != "" {
		return s.TTRPCTaskService.Delete(ctx, r)
	}
	if c.deleted == nil {
		resp, err := s.TTRPCTaskService.Delete(ctx, r)
		if err != nil {
			return nil, err
		}
		c.deleted = resp
		s.update(r.ID, c)
	}
	if err := unmountRootfs(ctx, c.rootfs); err != nil {
		return nil, toGRPC(err)
	}
	s.remove(r.ID)
	return c.deleted, nil
}
