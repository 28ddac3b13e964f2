package kubelet

import (
	"context"
	"errors"
	"net"
	"slices"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/policy"
)

// resourceDomain is the domain of the resources that are GPUs, by whatever name the device plugin
// gives them: nvidia.com/gpu, nvidia.com/gpu.shared, nvidia.com/mig-1g.5gb.
const resourceDomain = "nvidia.com/"

// methodList is the method of the PodResources API that every kubelet serves. Get is off by default
// before Kubernetes 1.36.
const methodList = "/v1.PodResourcesLister/List"

// maxMessage bounds a response, in bytes.
const maxMessage = 16 << 20

var errMalformed = errors.New("the kubelet's answer is malformed")

// Ping asks the kubelet behind the socket how many pods it has.
func Ping(ctx context.Context, socket string) (pods int, err error) {
	list, err := listPods(ctx, socket)
	return len(list), err
}

// Allocated asks the kubelet behind the socket what it allocated to a pod.
func Allocated(ctx context.Context, socket, namespace, name string) (policy.Allocation, error) {
	list, err := listPods(ctx, socket)
	if err != nil {
		return policy.Allocation{}, err
	}
	for _, p := range list {
		if p.namespace == namespace && p.name == name {
			return policy.Allocation{Found: true, Containers: p.containers}, nil
		}
	}
	return policy.Allocation{}, nil
}

// listPods asks the kubelet behind the socket for its pods.
func listPods(ctx context.Context, socket string) ([]pod, error) {
	conn, err := grpc.NewClient("passthrough:///kubelet",
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "unix", socket)
		}),
		grpc.WithDefaultCallOptions(grpc.ForceCodec(rawCodec{}), grpc.MaxCallRecvMsgSize(maxMessage)))
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	var response []byte
	if err := conn.Invoke(ctx, methodList, []byte{}, &response); err != nil {
		return nil, err
	}
	return decodePods(response)
}

// rawCodec passes messages as the bytes that they are on the wire: the generated code of the API
// would bring in much of Kubernetes.
type rawCodec struct{}

func (rawCodec) Name() string { return "proto" }

func (rawCodec) Marshal(v any) ([]byte, error) { return v.([]byte), nil }

func (rawCodec) Unmarshal(data []byte, v any) error {
	*v.(*[]byte) = slices.Clone(data)
	return nil
}
