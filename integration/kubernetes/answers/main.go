package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// answer is what the plugin answered for one container, in the names of its API.
type answer struct {
	Arguments   []string          `json:"arguments"`
	Resource    string            `json:"resource"`
	IDs         []string          `json:"ids"`
	Envs        map[string]string `json:"envs,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
	Mounts      [][2]string       `json:"mounts,omitempty"`  // container path, host path
	Devices     [][2]string       `json:"devices,omitempty"` // container path, host path
	CDI         []string          `json:"cdi,omitempty"`
}

// kubelet takes registrations.
type kubelet struct {
	pluginapi.UnimplementedRegistrationServer
	registered chan *pluginapi.RegisterRequest
}

func (k kubelet) Register(_ context.Context, r *pluginapi.RegisterRequest) (*pluginapi.Empty, error) {
	k.registered <- r
	return &pluginapi.Empty{}, nil
}

// main runs the plugin os.Args[1] with the arguments that follow, in a mount namespace of its own whose
// directory of plugins is empty.
func main() {
	ctx, stop := context.WithTimeout(context.Background(), 30*time.Second)
	a, err := ask(ctx, os.Args[1], os.Args[2:])
	stop()
	if err == nil {
		err = json.NewEncoder(os.Stdout).Encode(a)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func ask(ctx context.Context, plugin string, args []string) (a answer, err error) {
	listener, err := net.Listen("unix", filepath.Join(pluginapi.DevicePluginPath, filepath.Base(pluginapi.KubeletSocket)))
	if err != nil {
		return a, err
	}
	k := kubelet{registered: make(chan *pluginapi.RegisterRequest, 8)}
	server := grpc.NewServer()
	pluginapi.RegisterRegistrationServer(server, k)
	go func() { _ = server.Serve(listener) }()
	defer server.Stop()
	cmd := exec.CommandContext(ctx, plugin, args...)
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		return a, err
	}
	defer func() { _, _ = cmd.Process.Kill(), cmd.Wait() }()
	select {
	case r := <-k.registered:
		return allocate(ctx, r, args)
	case <-ctx.Done():
		return a, fmt.Errorf("the plugin does not register: %w", ctx.Err())
	}
}

// allocate asks for the first device of the plugin.
func allocate(ctx context.Context, r *pluginapi.RegisterRequest, args []string) (a answer, err error) {
	conn, err := grpc.NewClient("unix://"+filepath.Join(pluginapi.DevicePluginPath, r.Endpoint), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return a, err
	}
	defer conn.Close()
	client := pluginapi.NewDevicePluginClient(conn)
	watch, err := client.ListAndWatch(ctx, &pluginapi.Empty{})
	if err != nil {
		return a, err
	}
	list, err := watch.Recv()
	if err != nil {
		return a, err
	}
	for _, d := range list.Devices {
		a.IDs = append(a.IDs, d.ID)
	}
	slices.Sort(a.IDs)
	a.Arguments, a.Resource, a.IDs = args, r.ResourceName, a.IDs[:1]
	reply, err := client.Allocate(ctx, &pluginapi.AllocateRequest{ContainerRequests: []*pluginapi.ContainerAllocateRequest{{DevicesIds: a.IDs}}})
	if err != nil {
		return a, err
	}
	c := reply.ContainerResponses[0]
	a.Envs, a.Annotations = c.Envs, c.Annotations
	for _, m := range c.Mounts {
		a.Mounts = append(a.Mounts, [2]string{m.ContainerPath, m.HostPath})
	}
	for _, d := range c.Devices {
		a.Devices = append(a.Devices, [2]string{d.ContainerPath, d.HostPath})
	}
	for _, d := range c.CdiDevices {
		a.CDI = append(a.CDI, d.Name)
	}
	return a, nil
}
