package podresources

import (
	"context"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	api "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/policy"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testenv/kubelettest"
)

func TestTheKubeletIsAsked(t *testing.T) {
	other := kubelettest.Pod("team", "other", "GPU-other")
	namesake := kubelettest.Pod("other", "train", "GPU-other")
	train := kubelettest.Pod("team", "train", "GPU-a", "GPU-b::3")
	train.Containers[0].Devices = append(train.Containers[0].Devices, &api.ContainerDevices{ResourceName: "example.com/nic", DeviceIds: []string{"eth1"}})
	train.Containers = append(train.Containers, &api.ContainerResources{Name: "sidecar"})
	found := policy.Allocation{Found: true, Containers: map[string][]string{"main": {"GPU-a", "GPU-b::3"}, "sidecar": {}}}
	for _, tc := range []struct {
		name   string
		answer []*api.PodResources
		fails  error
		want   policy.Allocation
		err    string
	}{
		{"three pods", []*api.PodResources{other, namesake, train}, nil, found, ""},
		{"other pods", []*api.PodResources{other, namesake}, nil, policy.Allocation{}, ""},
		{"a node without pods", nil, nil, policy.Allocation{}, ""},
		{"a kubelet that fails", nil, status.Error(codes.Internal, "out of order"), policy.Allocation{}, "out of order"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			socket := filepath.Join(t.TempDir(), "kubelet.sock")
			kubelettest.Answer(t, socket, func() ([]*api.PodResources, error) { return tc.answer, tc.fails })
			got, err := Allocated(t.Context(), socket, "team", "train")
			if tc.err == "" && err != nil || tc.err != "" && (err == nil || !strings.Contains(err.Error(), tc.err)) || !reflect.DeepEqual(got, tc.want) {
				t.Errorf("allocated %+v, %v, want %+v, %q", got, err, tc.want, tc.err)
			}
			if err != nil && strings.Contains(err.Error(), "rpc error") {
				t.Errorf("gRPC's own text: %v", err)
			}
			if pods, err := Pods(t.Context(), socket); (err == nil) != (tc.err == "") || len(pods) != len(tc.answer) {
				t.Errorf("%d pods, %v, want %d", len(pods), err, len(tc.answer))
			}
		})
	}
}

func TestAnErrorNamesTheSocketInPlainWords(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "kubelet.sock")
	if _, err := Pods(t.Context(), socket); err == nil || err.Error() != "dial unix "+socket+": connect: no such file or directory" || !isBusy(err) {
		t.Error(err)
	}
}

// The kubelet has a rate limit and may be restarting: both are temporary.
func TestABusyKubeletIsAskedAgain(t *testing.T) {
	for _, code := range []codes.Code{codes.ResourceExhausted, codes.Unavailable} {
		socket := filepath.Join(t.TempDir(), "kubelet.sock")
		var calls atomic.Int32
		ctx, cancel := context.WithCancel(t.Context())
		kubelettest.Answer(t, socket, func() ([]*api.PodResources, error) {
			n := calls.Add(1)
			if n == 8 { // the time is over
				cancel()
			}
			if n != 4 {
				return nil, status.Error(code, "rejected by rate limit")
			}
			return []*api.PodResources{kubelettest.Pod("team", "train", "GPU-a")}, nil
		})
		if got, err := Allocated(t.Context(), socket, "team", "train"); err != nil || !got.Found || calls.Load() != 4 {
			t.Errorf("%v: after %d calls %+v, %v", code, calls.Load(), got, err)
		}
		if _, err := Allocated(ctx, socket, "team", "train"); status.Code(err) != code || !strings.Contains(err.Error(), "rate limit") {
			t.Errorf("%v: when the time is over: %v", code, err)
		}
	}
}

// More containers at once than the kubelet's rate limit permits (10, and 100 a second) all get an
// answer.
func TestManyAskAtOnce(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "kubelet.sock")
	var mu sync.Mutex
	tokens, last := 10.0, time.Now()
	kubelettest.Answer(t, socket, func() ([]*api.PodResources, error) {
		mu.Lock()
		defer mu.Unlock()
		tokens, last = min(10, tokens+100*time.Since(last).Seconds()), time.Now()
		if tokens--; tokens < 0 {
			tokens++
			return nil, status.Error(codes.ResourceExhausted, "rejected by rate limit")
		}
		return []*api.PodResources{kubelettest.Pod("team", "train", "GPU-a")}, nil
	})
	errs := make(chan error)
	for range 64 {
		go func() {
			_, err := Allocated(t.Context(), socket, "team", "train")
			errs <- err
		}()
	}
	for range 64 {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
}

func TestAKubeletThatDoesNotAnswerCostsTheTimeLimit(t *testing.T) {
	block := make(chan struct{})
	defer close(block)
	hung := filepath.Join(t.TempDir(), "kubelet.sock")
	kubelettest.Answer(t, hung, func() ([]*api.PodResources, error) { <-block; return nil, nil })
	for socket, want := range map[string]codes.Code{hung: codes.DeadlineExceeded, hung + ".missing": codes.Unavailable} {
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		if _, err := Allocated(ctx, socket, "team", "train"); status.Code(err) != want {
			t.Errorf("error %v, want %v", err, want)
		}
		cancel()
	}
}

func TestAServerOfAnotherUserIsNotBelieved(t *testing.T) {
	dir := t.TempDir()
	for name, mode := range map[string]os.FileMode{dir: 0o777, filepath.Dir(dir): 0o755} {
		if err := os.Chmod(name, mode); err != nil {
			t.Fatal(err)
		}
	}
	socket := filepath.Join(dir, "kubelet.sock")
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // for good: the thread ends with the goroutine
		// Only this thread is another user. A socket keeps the user who listens.
		if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, ^uintptr(0), 65534, ^uintptr(0)); errno != 0 {
			t.Error(errno)
			return
		}
		kubelettest.Serve(t, socket, kubelettest.Pod("team", "train", "GPU-a"))
	}()
	<-done
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	got, err := Allocated(ctx, socket, "team", "train")
	if got.Found || err == nil || !strings.Contains(err.Error(), "uid 65534 listens on "+socket) {
		t.Errorf("%+v, %v", got, err)
	}
}
