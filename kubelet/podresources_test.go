package kubelet

import (
	"context"
	"net"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
)

func field(b []byte, num protowire.Number, value []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(b, num, protowire.BytesType), value)
}

func container(name string, devices map[string][]string) []byte {
	b := field(nil, containerName, []byte(name))
	for resource, ids := range devices {
		d := field(nil, devicesResource, []byte(resource))
		for _, id := range ids {
			d = field(d, devicesIDs, []byte(id))
		}
		b = field(b, containerDevices, d)
	}
	// cpu_ids, which is no business of ours.
	return protowire.AppendVarint(protowire.AppendTag(b, 3, protowire.VarintType), 7)
}

func pod(namespace, name string, containers ...[]byte) []byte {
	b := field(field(nil, podName, []byte(name)), podNamespace, []byte(namespace))
	for _, c := range containers {
		b = field(b, podContainers, c)
	}
	return b
}

var pods = [][]byte{
	pod("default", "other", container("main", map[string][]string{"nvidia.com/gpu": {"GPU-other"}})),
	pod("team", "train",
		container("main", map[string][]string{"nvidia.com/gpu": {"GPU-a", "GPU-b::3"}, "example.com/nic": {"eth1"}}),
		container("sidecar", nil)),
}

// serve is a kubelet: a real gRPC server on a real socket.
func serve(t *testing.T, get, list func() ([]byte, error)) string {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "kubelet.sock")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	handler := func(_ any, stream grpc.ServerStream) error {
		var request []byte
		if err := stream.RecvMsg(&request); err != nil {
			return err
		}
		method, _ := grpc.MethodFromServerStream(stream)
		answer := list
		if method == methodGet {
			answer = get
		}
		b, err := answer()
		if err != nil {
			return err
		}
		return stream.SendMsg(b)
	}
	server := grpc.NewServer(grpc.ForceServerCodec(raw{}), grpc.UnknownServiceHandler(handler))
	go func() { _ = server.Serve(l) }()
	t.Cleanup(server.Stop)
	return socket
}

func TestAllocated(t *testing.T) {
	var listed []byte
	for _, p := range pods {
		listed = field(listed, responsePods, p)
	}
	list := func() ([]byte, error) { return listed, nil }
	want := Pod{Found: true, Containers: map[string][]string{"main": {"GPU-a", "GPU-b::3"}, "sidecar": {}}}
	for name, tc := range map[string]struct {
		get       func() ([]byte, error)
		namespace string
		want      Pod
		err       string
	}{
		"by Get": {func() ([]byte, error) { return field(nil, responsePods, pods[1]), nil }, "team", want, ""},
		"by List where Get is disabled": {func() ([]byte, error) {
			return nil, status.Error(codes.Unknown, "PodResources API Get method disabled")
		}, "team", want, ""},
		"by List where Get is unknown":  {func() ([]byte, error) { return nil, status.Error(codes.Unimplemented, "no") }, "team", want, ""},
		"a pod that Get does not find":  {func() ([]byte, error) { return nil, status.Error(codes.Unknown, "pod not found") }, "team", Pod{}, ""},
		"a pod that List does not have": {func() ([]byte, error) { return nil, status.Error(codes.Unimplemented, "no") }, "tea", Pod{}, ""},
		"a kubelet that is overloaded":  {func() ([]byte, error) { return nil, status.Error(codes.ResourceExhausted, "rejected by rate limit") }, "team", Pod{}, "rate limit"},
		"an answer that is cut":         {func() ([]byte, error) { return listed[:len(listed)-3], nil }, "team", Pod{}, "malformed"},
	} {
		t.Run(name, func(t *testing.T) {
			socket := serve(t, tc.get, list)
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			defer cancel()
			got, err := Allocated(ctx, socket, tc.namespace, "train")
			if tc.err != "" {
				if err == nil || !strings.Contains(err.Error(), tc.err) {
					t.Fatalf("got %v, want an error with %q", err, tc.err)
				}
				return
			}
			if err != nil || !reflect.DeepEqual(got, tc.want) {
				t.Errorf("got %+v %v, want %+v", got, err, tc.want)
			}
		})
	}
}

func TestAKubeletThatDoesNotAnswerIsNotWaitedFor(t *testing.T) {
	block := make(chan struct{})
	defer close(block)
	hang := func() ([]byte, error) { <-block; return nil, nil }
	socket := serve(t, hang, hang)
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if _, err := Allocated(ctx, socket, "team", "train"); err == nil {
		t.Error("no error")
	}
	if _, err := Allocated(ctx, filepath.Join(t.TempDir(), "none.sock"), "team", "train"); err == nil {
		t.Error("no error for a missing socket")
	}
}

func FuzzParse(f *testing.F) {
	f.Add(field(nil, responsePods, pods[0]))
	f.Fuzz(func(t *testing.T, b []byte) {
		p, err := parse(b, "default", "other")
		if err == nil && p.Found && p.Containers == nil {
			t.Fatal("a pod without its containers")
		}
	})
}
