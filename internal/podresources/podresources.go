package podresources

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	api "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/policy"
)

// maxMessage bounds a response, in bytes.
const maxMessage = 16 << 20

// Waits before Allocated asks again. The kubelet takes 10 calls at once and 100 a second.
const (
	firstWait = 20 * time.Millisecond
	maxWait   = 320 * time.Millisecond
)

// Allocated asks the kubelet behind the socket what it allocated to a pod. While the kubelet is
// busy or restarts, it repeats the question until the context ends. The API has no UID: the answer
// is for any pod with this name.
func Allocated(ctx context.Context, socket, namespace, name string) (policy.Allocation, error) {
	list, err := Pods(ctx, socket)
	for wait := firstWait; isBusy(err); wait = min(2*wait, maxWait) {
		last := err
		select {
		case <-ctx.Done():
			return policy.Allocation{}, last
		case <-time.After(wait/2 + rand.N(wait)): // many containers were refused at the same moment
		}
		list, err = Pods(ctx, socket)
		if code := status.Code(err); code == codes.DeadlineExceeded || code == codes.Canceled {
			err = last // explains why there was no answer in time
		}
	}
	if err != nil {
		return policy.Allocation{}, err
	}
	for _, pod := range list {
		if pod.Namespace != namespace || pod.Name != name { // guard: grant: pod's namespace; grant: pod's name
			continue
		}
		a := policy.Allocation{Found: true, Containers: map[string][]string{}}
		for _, c := range pod.Containers {
			ids := []string{}
			for _, d := range c.Devices {
				if policy.IsGPUResource(d.ResourceName) { // guard: grant: resources of GPUs
					ids = append(ids, d.DeviceIds...)
				}
			}
			a.Containers[c.Name] = ids
		}
		return a, nil
	}
	return policy.Allocation{}, nil
}

// isBusy reports whether a later call may succeed: the kubelet rejects calls above its rate limit,
// and does not listen while it restarts.
func isBusy(err error) bool {
	code := status.Code(err)
	return code == codes.ResourceExhausted || code == codes.Unavailable
}

// Pods asks the kubelet behind the socket for all its pods. Get, which asks for one, is disabled by
// default before Kubernetes 1.36.
//
// A server of another user than root is not believed: its answers decide who gets a GPU.
func Pods(ctx context.Context, socket string) ([]*api.PodResources, error) {
	var failed atomic.Pointer[error] // gRPC would only say that the kubelet is unavailable
	dial := func(ctx context.Context, _ string) (net.Conn, error) {
		conn, err := dialRoot(ctx, socket)
		if err != nil {
			failed.Store(&err)
		}
		return conn, err
	}
	conn, err := grpc.NewClient("unix:"+socket,
		grpc.WithContextDialer(dial),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage)))
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	response, err := api.NewPodResourcesListerClient(conn).List(ctx, &api.ListPodResourcesRequest{})
	switch dialed := failed.Load(); {
	case err == nil:
		return response.GetPodResources(), nil
	case dialed != nil && errors.Is(*dialed, errNotRoot):
		return nil, *dialed
	case dialed != nil && status.Code(err) == codes.Unavailable:
		return nil, answerError{status.Convert(err), (*dialed).Error()}
	}
	return nil, answerError{status.Convert(err), status.Convert(err).Message()}
}

// answerError is an error of gRPC with a text that has none of its terms.
type answerError struct {
	status *status.Status
	text   string
}

func (e answerError) Error() string { return e.text }

// GRPCStatus is for status.Code.
func (e answerError) GRPCStatus() *status.Status { return e.status }

// errNotRoot is the error of a socket on which another user than root listens.
var errNotRoot = errors.New("only a kubelet that root runs is asked")

// dialRoot connects to a Unix socket on which root, or this process' user, listens.
func dialRoot(ctx context.Context, socket string) (net.Conn, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", socket)
	if err != nil {
		return nil, err
	}
	raw, err := conn.(*net.UnixConn).SyscallConn()
	var peer *unix.Ucred
	if err == nil {
		var unknown error
		err = raw.Control(func(fd uintptr) {
			peer, unknown = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
		})
		err = cmp.Or(err, unknown)
	}
	if err == nil && peer.Uid != 0 && int(peer.Uid) != os.Geteuid() { // guard: probe: kubelet of root
		err = fmt.Errorf("uid %d listens on %s: %w", peer.Uid, socket, errNotRoot)
	}
	if err != nil {
		_ = conn.Close()
		return nil, err
	}
	return conn, nil
}
