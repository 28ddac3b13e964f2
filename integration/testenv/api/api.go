package api

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	snapshots "github.com/containerd/containerd/api/services/snapshots/v1"
	tasks "github.com/containerd/containerd/api/services/tasks/v1"
	runtimeoptions "github.com/containerd/containerd/api/types/runtimeoptions/v1"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/ttrpc"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testenv"
)

// Client speaks containerd's API, for requests that ctr has no command for.
type Client struct {
	Conn  *grpc.ClientConn
	Tasks tasks.TasksClient

	env *testenv.Env
}

// Connect connects to an environment's containerd until the test ends.
func Connect(t testing.TB, e *testenv.Env) *Client {
	t.Helper()
	conn, err := grpc.NewClient("unix://"+e.Address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return &Client{Conn: conn, Tasks: tasks.NewTasksClient(conn), env: e}
}

// Context adds the environment's namespace.
func (c *Client) Context(ctx context.Context) context.Context {
	return metadata.AppendToOutgoingContext(ctx, "containerd-namespace", c.env.ID)
}

// CreateRequest is the request that creates the task of a container without standard
// streams.
func (c *Client) CreateRequest(ctx context.Context, id string) (*tasks.CreateTaskRequest, error) {
	mounts, err := snapshots.NewSnapshotsClient(c.Conn).Mounts(c.Context(ctx), &snapshots.MountsRequest{Snapshotter: testenv.Snapshotter, Key: id})
	if err != nil {
		return nil, fmt.Errorf("snapshot of %s: %w", id, err)
	}
	return &tasks.CreateTaskRequest{ContainerID: id, Rootfs: mounts.Mounts}, nil
}

// Create creates the task of a container without starting it and returns its process.
func (c *Client) Create(ctx context.Context, id string) (pid uint32, err error) {
	request, err := c.CreateRequest(ctx, id)
	if err != nil {
		return 0, err
	}
	task, err := c.Tasks.Create(c.Context(ctx), request)
	return task.GetPid(), err
}

// Start starts a task.
func (c *Client) Start(ctx context.Context, id string) error {
	_, err := c.Tasks.Start(c.Context(ctx), &tasks.StartRequest{ContainerID: id})
	return err
}

// Task is the Task service of the shim that runs a container, for requests that ctr has
// no command for.
func Task(t testing.TB, e *testenv.Env, id string) (taskapi.TTRPCTaskService, context.Context) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(e.BundleDir(id), "bootstrap.json"))
	if err != nil {
		t.Fatal(err)
	}
	return TaskService(t, data, "/", e.ID)
}

// TaskService is Task for the shim whose bundle has this bootstrap.json; root is where
// the shim's file system is.
func TaskService(t testing.TB, bootstrap []byte, root, namespace string) (taskapi.TTRPCTaskService, context.Context) {
	t.Helper()
	var boot struct{ Address, Protocol string }
	if err := json.Unmarshal(bootstrap, &boot); err != nil || boot.Protocol != "ttrpc" {
		t.Fatalf("the shim's address is %s: %v", bootstrap, err)
	}
	conn, err := net.Dial("unix", filepath.Join(root, strings.TrimPrefix(boot.Address, "unix://")))
	if err != nil {
		t.Fatal(err)
	}
	client := ttrpc.NewClient(conn)
	t.Cleanup(func() { client.Close() })
	ctx, cancel := context.WithTimeout(namespaces.WithNamespace(context.Background(), namespace), 5*time.Minute)
	t.Cleanup(cancel)
	return taskapi.NewTTRPCTaskClient(client), ctx
}

// RuntimeOptions returns runtime options that carry a handler's options table.
func RuntimeOptions(t testing.TB, toml string) *anypb.Any {
	t.Helper()
	options, err := anypb.New(&runtimeoptions.Options{ConfigBody: []byte(toml)})
	if err != nil {
		t.Fatal(err)
	}
	return options
}
