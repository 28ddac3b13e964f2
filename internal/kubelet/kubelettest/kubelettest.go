package kubelettest

import (
	"fmt"
	"net"
	"os"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/protowire"
)

// Devices are device ids by resource name.
type Devices map[string][]string

// Pod is a pod with its containers' devices.
type Pod struct {
	Namespace, Name string
	Containers      map[string]Devices
}

// Encode is the pod's PodResources message.
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
		// cpu_ids, which is no business of anybody's here.
		c = protowire.AppendVarint(protowire.AppendTag(c, 3, protowire.VarintType), 7)
		b = field(b, 3, c)
	}
	return b
}

// List is a ListPodResourcesResponse of the pods, and for one pod a
// GetPodResourcesResponse.
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

// Serve answers on the socket until the test ends. method is the last part of the
// method's name, Get or List; the answer is the message's bytes, or the error.
func Serve(t testing.TB, socket string, answer func(method string) ([]byte, error)) {
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
		full, _ := grpc.MethodFromServerStream(stream)
		b, err := answer(full[len("/v1.PodResourcesLister/"):])
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

// codec passes messages as bytes.
type codec struct{}

func (codec) Name() string { return "proto" }

func (codec) Marshal(v any) ([]byte, error) {
	if b, ok := v.([]byte); ok {
		return b, nil
	}
	return nil, fmt.Errorf("not a raw message: %T", v)
}

func (codec) Unmarshal(data []byte, v any) error {
	*v.(*[]byte) = append([]byte(nil), data...)
	return nil
}
