package shim

import (
	"context"

	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/containerd/api/types/task"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
)

// Delete deletes the container and unmounts the root file system that Create mounted, as the
// embedded service does with one that it mounted itself.
func (s *Service) Delete(ctx context.Context, r *taskapi.DeleteRequest) (*taskapi.DeleteResponse, error) {
	if r.ExecID == "" {
		s.takeBackMemory(ctx, r.ID) // guard: memory: taken back before deletion
	}
	resp, err := s.deleteTask(ctx, r)
	if r.ExecID == "" && errdefs.IsNotFound(errgrpc.ToNative(err)) {
		// guard: shim: a Create whose container is deleted ends
		s.cancelCreate(r.ID) // containerd no longer waits for it
		return resp, err
	}
	if err != nil && r.ExecID == "" && s.thawStopped(ctx, r.ID) {
		resp, err = s.deleteTask(ctx, r)
	}
	if err != nil || r.ExecID != "" {
		return resp, err
	}
	s.forget(ctx, r.ID)
	s.resumeShutdown() // guard: shim: end after the last Delete
	return resp, nil
}

// forget releases what Create has kept for a container that is deleted.
func (s *Service) forget(ctx context.Context, id string) {
	if c := s.get(id); rules[callDelete][c.state] == acts {
		c.restoration.mask.Close()
		unmountRootfs(ctx, c.rootfs)
		s.remove(id)
	}
}

// deleteTask has the embedded service delete the container or the process.
func (s *Service) deleteTask(ctx context.Context, r *taskapi.DeleteRequest) (*taskapi.DeleteResponse, error) {
	resp, err := s.TTRPCTaskService.Delete(ctx, r)
	if err == nil && r.ExecID == "" && resp.Pid != 0 { // it has run
		s.events.waitExit(r.ID)
	}
	return resp, err
}

// thawStopped thaws the container if it ended while it was frozen, and reports whether it was
// frozen. The embedded service has runc thaw such a container once and only logs a failure; it
// resumes no stopped container, and runc deletes no frozen one.
func (s *Service) thawStopped(ctx context.Context, id string) bool {
	c := s.get(id)
	if c.state == unknown || s.status(ctx, id) != task.Status_STOPPED {
		return false
	}
	runc, err := c.runc(ctx)
	return err == nil && runc.Resume(ctx, id) == nil
}
