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
	c, ok := s.get(r.ID)
	if !ok {
		return resp, nil
	}
	s.remove(r.ID)
	if err := unmountRootfs(ctx, c.rootfs); err != nil {
		return nil, toGRPC(err)
	}
	return resp, nil
}
