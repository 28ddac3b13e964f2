package kubelettest

import (
	"context"
	"net"
	"os"
	"testing"

	"google.golang.org/grpc"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"
)

// Pod returns a pod whose container main has GPUs.
func Pod(namespace, name string, gpus ...string) *podresources.PodResources {
	return &podresources.PodResources{Namespace: namespace, Name: name, Containers: []*podresources.ContainerResources{
		{Name: "main", Devices: []*podresources.ContainerDevices{{ResourceName: "nvidia.com/gpu", DeviceIds: gpus}}},
	}}
}

// Serve lists the pods on the socket until the test ends.
func Serve(t testing.TB, socket string, pods ...*podresources.PodResources) {
	t.Helper()
	Answer(t, socket, func() ([]*podresources.PodResources, error) { return pods, nil })
}

// Answer lists the pods or fails, on the socket, until the test ends.
func Answer(t testing.TB, socket string, list func() ([]*podresources.PodResources, error)) {
	t.Helper()
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	podresources.RegisterPodResourcesListerServer(server, lister{list: list})
	go func() { _ = server.Serve(l) }()
	t.Cleanup(func() {
		server.Stop()
		_ = os.Remove(socket)
	})
}

type lister struct {
	podresources.UnimplementedPodResourcesListerServer
	list func() ([]*podresources.PodResources, error)
}

func (l lister) List(
	context.Context, *podresources.ListPodResourcesRequest,
) (*podresources.ListPodResourcesResponse, error) {
	pods, err := l.list()
	return &podresources.ListPodResourcesResponse{PodResources: pods}, err
}
