package main

import (
	"context"
	"fmt"
	"time"

	containers "github.com/containerd/containerd/api/services/containers/v1"
	snapshots "github.com/containerd/containerd/api/services/snapshots/v1"
	tasks "github.com/containerd/containerd/api/services/tasks/v1"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testenv"
)

// task is a container with its task.
type task struct {
	*daemon
	id            string
	pid           int // of the container's init process
	create, start time.Duration
}

// start creates the task of a container that exists and starts it. What is timed
// are the two calls; the snapshot was made before.
func (d *daemon) start(ctx context.Context, id string) (*task, error) {
	request, err := d.client.CreateRequest(ctx, id)
	if err != nil {
		return nil, err
	}
	ctx = d.client.Context(ctx)
	t := &task{daemon: d, id: id}
	began := time.Now()
	made, err := d.client.Tasks.Create(ctx, request)
	if err != nil {
		return nil, fmt.Errorf("create %s: %w", id, err)
	}
	created := time.Now()
	if _, err := d.client.Tasks.Start(ctx, &tasks.StartRequest{ContainerID: id}); err != nil {
		return nil, fmt.Errorf("start %s: %w", id, err)
	}
	t.pid = int(made.Pid)
	t.create, t.start = created.Sub(began), time.Since(created)
	return t, nil
}

// stop ends the task and deletes it.
func (t *task) stop(ctx context.Context) error {
	ctx = t.client.Context(ctx)
	api := t.client.Tasks
	if _, err := api.Kill(ctx, &tasks.KillRequest{ContainerID: t.id, Signal: uint32(unix.SIGKILL), All: true}); err != nil {
		return fmt.Errorf("kill %s: %w", t.id, err)
	}
	if _, err := api.Wait(ctx, &tasks.WaitRequest{ContainerID: t.id}); err != nil {
		return fmt.Errorf("wait for %s: %w", t.id, err)
	}
	if _, err := api.Delete(ctx, &tasks.DeleteTaskRequest{ContainerID: t.id}); err != nil {
		return fmt.Errorf("delete the task of %s: %w", t.id, err)
	}
	return nil
}

// remove ends the task and deletes it, its container and its snapshot.
func (t *task) remove(ctx context.Context) error {
	if err := t.stop(ctx); err != nil {
		return err
	}
	ctx = t.client.Context(ctx)
	if _, err := containers.NewContainersClient(t.client.Conn).Delete(ctx, &containers.DeleteContainerRequest{ID: t.id}); err != nil {
		return fmt.Errorf("delete container %s: %w", t.id, err)
	}
	_, err := snapshots.NewSnapshotsClient(t.client.Conn).Remove(ctx, &snapshots.RemoveSnapshotRequest{Snapshotter: testenv.Snapshotter, Key: t.id})
	// containerd's garbage collection may have been first: nothing refers to it any more.
	if err != nil && status.Code(err) != codes.NotFound {
		return fmt.Errorf("remove the snapshot of %s: %w", t.id, err)
	}
	return nil
}
