package kubelet

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
)

// ResourceDomain is the domain of the resources that are GPUs, whatever the device
// plugin names them: nvidia.com/gpu, nvidia.com/gpu.shared, nvidia.com/mig-1g.5gb.
const ResourceDomain = "nvidia.com/"

// Methods of the PodResources API. Get is off by default before Kubernetes 1.36
// (feature KubeletPodResourcesGet); List has always been there.
const (
	methodGet  = "/v1.PodResourcesLister/Get"
	methodList = "/v1.PodResourcesLister/List"
)

// maxMessage bounds an answer, in bytes.
const maxMessage = 16 << 20

// Pod is what the kubelet allocated to a pod.
type Pod struct {
	// Found says that the kubelet knows the pod.
	Found bool `json:"found"`
	// Containers maps a container's name to its device ids. Containers without
	// devices are there with none; init containers that run to completion, and
	// ephemeral ones, are not listed by the kubelet (kubernetes issue 126765).
	Containers map[string][]string `json:"containers"`
}

// dial prepares calls to the kubelet behind the socket.
func dial(socket string) (*grpc.ClientConn, error) {
	return grpc.NewClient("passthrough:///kubelet",
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "unix", socket)
		}),
		grpc.WithDefaultCallOptions(grpc.ForceCodec(raw{}), grpc.MaxCallRecvMsgSize(maxMessage)))
}

// Ping finds out whether the kubelet behind the socket answers, by a List, and returns
// how many pods it knows.
func Ping(ctx context.Context, socket string) (pods int, err error) {
	conn, err := dial(socket)
	if err != nil {
		return 0, err
	}
	defer func() { _ = conn.Close() }()

	var answer []byte
	if err := conn.Invoke(ctx, methodList, []byte{}, &answer); err != nil {
		return 0, err
	}
	return count(answer)
}

// Allocated asks the kubelet behind the socket for one pod.
func Allocated(ctx context.Context, socket, namespace, name string) (Pod, error) {
	conn, err := dial(socket)
	if err != nil {
		return Pod{}, err
	}
	defer func() { _ = conn.Close() }()

	var answer []byte
	err = conn.Invoke(ctx, methodGet, getRequest(namespace, name), &answer)
	switch code := status.Code(err); {
	case err == nil:
		return parse(answer, namespace, name)
	case code == codes.NotFound || strings.Contains(status.Convert(err).Message(), "not found"):
		return Pod{}, nil
	case code != codes.Unimplemented && code != codes.Unknown:
		return Pod{}, err
	}
	// Unknown is what a kubelet says whose Get is disabled.
	if err := conn.Invoke(ctx, methodList, []byte{}, &answer); err != nil {
		return Pod{}, err
	}
	return parse(answer, namespace, name)
}

// raw passes messages as the bytes that they are on the wire, so that the API's
// generated code, and with it much of Kubernetes, stays out.
type raw struct{}

func (raw) Name() string { return "proto" }

func (raw) Marshal(v any) ([]byte, error) {
	b, ok := v.([]byte)
	if !ok {
		return nil, fmt.Errorf("not a raw message: %T", v)
	}
	return b, nil
}

func (raw) Unmarshal(data []byte, v any) error {
	b, ok := v.(*[]byte)
	if !ok {
		return fmt.Errorf("not a raw message: %T", v)
	}
	*b = append([]byte(nil), data...)
	return nil
}

var errMalformed = errors.New("the kubelet's answer is malformed")
