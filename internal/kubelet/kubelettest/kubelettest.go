package kubelettest

import (
	"net"
	"os"
	"slices"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
)

// Devices are device ids by resource name.
type Devices map[string][]string

// Pod is a pod with its containers' devices.
type Pod struct {
	Namespace, Name string
	Containers      map[string]Devices
}

// Encode returns the pod's PodResources message.
func (p Pod) Encode() []byte {
	b := field(field(nil, 1, []byte(p.Name)), 2, []byte(p.Namespace))
	for name, devices := range p.Containers {
		c := field(nil, 1, []byte(name))
		for resource, ids := range devices {
			d := field(nil, 1, []byte(resource))
			for _, id := range ids {
				d = field(d, 2, []byte(id))
			}
			c = field(c, 2, d)
		}
		// cpu_ids, which a client of ours skips.
		c = protowire.AppendVarint(protowire.AppendTag(c, 3, protowire.VarintType), 7)
		b = field(b, 3, c)
	}
	return b
}

// List returns a ListPodResourcesResponse of the pods.
func List(pods ...Pod) []byte {
	var b []byte
	for _, p := range pods {
		b = field(b, 1, p.Encode())
	}
	return b
}

func field(b []byte, num protowire.Number, value []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(b, num, protowire.BytesType), value)
}

// Serve answers List on the socket until the test ends, with the message's bytes or the error.
func Serve(t testing.TB, socket string, answer func() ([]byte, error)) {
	t.Helper()
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	handler := func(_ any, stream grpc.ServerStream) error {
		var request []byte
		if err := stream.RecvMsg(&request); err != nil {
			return err
		}
		if method, _ := grpc.MethodFromServerStream(stream); method != "/v1.PodResourcesLister/List" {
			return status.Error(codes.Unimplemented, method)
		}
		b, err := answer()
		if err != nil {
			return err
		}
		return stream.SendMsg(b)
	}
	server := grpc.NewServer(grpc.ForceServerCodec(codec{}), grpc.UnknownServiceHandler(handler))
	go func() { _ = server.Serve(l) }()
	t.Cleanup(func() {
		server.Stop()
		_ = os.Remove(socket)
	})
}

// codec passes messages as the bytes that they are on the wire.
type codec struct{}

func (codec) Name() string { return "proto" }

func (codec) Marshal(v any) ([]byte, error) { return v.([]byte), nil }

func (codec) Unmarshal(data []byte, v any) error {
	*v.(*[]byte) = slices.Clone(data)
	return nil
}
