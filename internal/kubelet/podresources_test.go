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

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/policy"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/kubelet/kubelettest"
)

var (
	other = kubelettest.Pod{Namespace: "default", Name: "other", Containers: map[string]kubelettest.Devices{"main": {"nvidia.com/gpu": {"GPU-other"}}}}
	train = kubelettest.Pod{Namespace: "team", Name: "train", Containers: map[string]kubelettest.Devices{
		"main": {"nvidia.com/gpu": {"GPU-a", "GPU-b::3"}, "example.com/nic": {"eth1"}}, "sidecar": nil,
	}}
)

// serve starts a kubelet and returns its socket.
func serve(t *testing.T, answer func() ([]byte, error)) (socket string) {
	t.Helper()
	socket = filepath.Join(t.TempDir(), "kubelet.sock")
	kubelettest.Serve(t, socket, answer)
	return socket
}

func TestTheKubeletIsAsked(t *testing.T) {
	all := kubelettest.List(other, train)
	found := policy.Allocation{Found: true, Containers: map[string][]string{"main": {"GPU-a", "GPU-b::3"}, "sidecar": {}}}
	for _, tc := range []struct {
		name   string
		answer []byte
		fails  error
		want   policy.Allocation
		pods   int
		err    string
	}{
		{"two pods", all, nil, found, 2, ""},
		{"another pod", kubelettest.List(other), nil, policy.Allocation{}, 1, ""},
		{"a node without pods", nil, nil, policy.Allocation{}, 0, ""},
		{"an overloaded kubelet", nil, status.Error(codes.ResourceExhausted, "rejected by rate limit"), policy.Allocation{}, 0, "rate limit"},
		{"a truncated answer", all[:len(all)-3], nil, policy.Allocation{}, 1, "malformed"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			socket := serve(t, func() ([]byte, error) { return tc.answer, tc.fails })
			got, err := Allocated(t.Context(), socket, "team", "train")
			if tc.err == "" && err != nil || tc.err != "" && (err == nil || !strings.Contains(err.Error(), tc.err)) || !reflect.DeepEqual(got, tc.want) {
				t.Errorf("allocated %+v, %v, want %+v, %q", got, err, tc.want, tc.err)
			}
			if pods, err := Ping(t.Context(), socket); (err == nil) != (tc.err == "") || pods != tc.pods {
				t.Errorf("%d pods, %v, want %d", pods, err, tc.pods)
			}
		})
	}
}

func TestAKubeletThatDoesNotAnswerCostsTheTimeLimit(t *testing.T) {
	block := make(chan struct{})
	defer close(block)
	hung := serve(t, func() ([]byte, error) { <-block; return nil, nil })
	for socket, want := range map[string]codes.Code{hung: codes.DeadlineExceeded, hung + ".missing": codes.Unavailable} {
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		if _, err := Allocated(ctx, socket, "team", "train"); status.Code(err) != want {
			t.Errorf("error %v, want %v", err, want)
		}
		cancel()
	}
}

func FuzzDecodePods(f *testing.F) {
	f.Add(kubelettest.List(other, train))
	f.Fuzz(func(t *testing.T, b []byte) {
		if list, err := decodePods(b); err == nil && len(list) > len(b) {
			t.Fatalf("%d pods in %d bytes", len(list), len(b))
		}
	})
}
