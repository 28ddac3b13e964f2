package shim

import (
	"context"

	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
)

// Delete deletes the container and takes the root file system away that Create
// mounted, as the embedded service does with one that it mounted itself.
func (s *Service) Delete(ctx context.Context, r *taskapi.DeleteRequest) (*taskapi.DeleteResponse, error) {
	resp, err := s.TTRPCTaskService.Delete(ctx, r)
	if err != nil || r.ExecID != "" {
		return resp, err
	}
	if c := s.get(r.ID); c != nil {
		s.mu.Lock()
		restore := c.restore
		s.mu.Unlock()
		if restore != nil {
			restore.Close()
		}
		s.put(r.ID, nil)
		if err := unmountRootfs(ctx, c); err != nil {
			return nil, toGRPC(err)
		}
	}
	return resp, nil
}
