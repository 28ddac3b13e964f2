package kubelet

import (
	"context"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/kubelet/kubelettest"
)

var pods = []kubelettest.Pod{
	{Namespace: "default", Name: "other", Containers: map[string]kubelettest.Devices{"main": {"nvidia.com/gpu": {"GPU-other"}}}},
	{Namespace: "team", Name: "train", Containers: map[string]kubelettest.Devices{
		"main": {"nvidia.com/gpu": {"GPU-a", "GPU-b::3"}, "example.com/nic": {"eth1"}}, "sidecar": nil,
	}},
}

func serve(t *testing.T, get, list func() ([]byte, error)) string {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "kubelet.sock")
	kubelettest.Serve(t, socket, func(method string) ([]byte, error) {
		if method == "Get" {
			return get()
		}
		return list()
	})
	return socket
}

func TestAllocated(t *testing.T) {
	listed := kubelettest.List(pods...)
	list := func() ([]byte, error) { return listed, nil }
	want := Pod{Found: true, Containers: map[string][]string{"main": {"GPU-a", "GPU-b::3"}, "sidecar": {}}}
	for name, tc := range map[string]struct {
		get       func() ([]byte, error)
		namespace string
		want      Pod
		err       string
	}{
		"by Get": {func() ([]byte, error) { return kubelettest.List(pods[1]), nil }, "team", want, ""},
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

func TestPingCountsThePodsThatAKubeletLists(t *testing.T) {
	listed := kubelettest.List(pods...)
	for name, tc := range map[string]struct {
		list func() ([]byte, error)
		want int
		err  string
	}{
		"two pods":                     {func() ([]byte, error) { return listed, nil }, 2, ""},
		"a node without pods":          {func() ([]byte, error) { return nil, nil }, 0, ""},
		"a kubelet that is overloaded": {func() ([]byte, error) { return nil, status.Error(codes.ResourceExhausted, "rejected by rate limit") }, 0, "rate limit"},
		"an answer that is cut":        {func() ([]byte, error) { return listed[:len(listed)-3], nil }, 0, "malformed"},
		"a pod that is cut":            {func() ([]byte, error) { return []byte{1<<3 | 2, 2, 3<<3 | 2, 9}, nil }, 0, "malformed"},
	} {
		t.Run(name, func(t *testing.T) {
			get := func() ([]byte, error) { return nil, status.Error(codes.Internal, "Get was called") }
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			defer cancel()
			got, err := Ping(ctx, serve(t, get, tc.list))
			if tc.err != "" {
				if err == nil || !strings.Contains(err.Error(), tc.err) {
					t.Fatalf("got %v, want an error with %q", err, tc.err)
				}
				return
			}
			if err != nil || got != tc.want {
				t.Errorf("got %d %v, want %d", got, err, tc.want)
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
	short, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if _, err := Ping(short, socket); status.Code(err) != codes.DeadlineExceeded {
		t.Errorf("Ping: %v, want the end of its time", err)
	}
	if _, err := Ping(t.Context(), filepath.Join(t.TempDir(), "none.sock")); status.Code(err) != codes.Unavailable {
		t.Errorf("Ping of a missing socket: %v", err)
	}
	if _, err := Allocated(ctx, filepath.Join(t.TempDir(), "none.sock"), "team", "train"); err == nil {
		t.Error("no error for a missing socket")
	}
}

func FuzzParse(f *testing.F) {
	f.Add(kubelettest.List(pods[0]))
	f.Fuzz(func(t *testing.T, b []byte) {
		p, err := parse(b, "default", "other")
		if err == nil && p.Found && p.Containers == nil {
			t.Fatal("a pod without its containers")
		}
	})
}
