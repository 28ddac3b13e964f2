package kubelet

import (
	"context"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/policy"
)

// resourceDomain is the domain of the resources that are GPUs, by whatever name the device plugin
// gives them: nvidia.com/gpu, nvidia.com/gpu.shared, nvidia.com/mig-1g.5gb.
const resourceDomain = "nvidia.com/"

// maxMessage bounds a response, in bytes.
const maxMessage = 16 << 20

// Allocated asks the kubelet behind the socket what it allocated to a pod.
func Allocated(ctx context.Context, socket, namespace, name string) (policy.Allocation, error) {
	list, err := Pods(ctx, socket)
	if err != nil {
		return policy.Allocation{}, err
	}
	for _, pod := range list {
		if pod.Namespace != namespace || pod.Name != name {
			continue
		}
		a := policy.Allocation{Found: true, Containers: map[string][]string{}}
		for _, c := range pod.Containers {
			ids := []string{}
			for _, d := range c.Devices {
				if strings.HasPrefix(d.ResourceName, resourceDomain) {
					ids = append(ids, d.DeviceIds...)
				}
			}
			a.Containers[c.Name] = ids
		}
		return a, nil
	}
	return policy.Allocation{}, nil
}

// Pods asks the kubelet behind the socket for its pods. Get, which asks for one, is off by
// default before Kubernetes 1.36.
func Pods(ctx context.Context, socket string) ([]*podresources.PodResources, error) {
	conn, err := grpc.NewClient("unix:"+socket,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage)))
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	response, err := podresources.NewPodResourcesListerClient(conn).List(ctx, &podresources.ListPodResourcesRequest{})
	return response.GetPodResources(), err
}
