package integration

import (
	"errors"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testenv"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/kubelet/kubelettest"
)

// kubeAnnotations are those that containerd's CRI plugin writes.
func kubeAnnotations(namespace, pod, container string) []string {
	const cri = "io.kubernetes.cri."
	return []string{
		cri + "container-type=container", cri + "sandbox-namespace=" + namespace,
		cri + "sandbox-name=" + pod, cri + "container-name=" + container,
	}
}

// The shim asks the kubelet through its probe. The kubelet is a stand-in that
// speaks the real protocol; the tests with a real one are in integration/kubernetes.
func TestAPodGetsWhatTheKubeletSaysWhateverItsEnvironmentSays(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "kubelet.sock")
	h := newHost(t, hostOptions{config: "[policy]\nkubelet-socket = \"" + socket + "\"\n"})
	gpu := func(i int) string { return h.Driver.GPUs[i].UUID }
	pods := kubelettest.List(
		kubelettest.Pod{Namespace: "team", Name: "train", Containers: map[string]kubelettest.Devices{
			"main": {"nvidia.com/gpu": {gpu(1)}}, "two": {"nvidia.com/gpu.shared": {gpu(2) + "::3", gpu(3)}}, "sidecar": nil,
		}},
		kubelettest.Pod{Namespace: "other", Name: "train", Containers: map[string]kubelettest.Devices{"main": {"nvidia.com/gpu": {gpu(0)}}}},
	)
	kubelettest.Serve(t, socket, func(method string) ([]byte, error) {
		if method == "Get" {
			return nil, errors.New("PodResources API Get method disabled")
		}
		return pods, nil
	})
	image := h.image(t, "glibc-nocache")
	for _, tc := range []struct {
		name, namespace, pod, container, visible string
		want                                     []int  // GPUs that nvidia-smi lists
		refused                                  string // or what the error says
	}{
		{name: "the device plugin's variable names the allocated GPU", namespace: "team", pod: "train", container: "main", visible: gpu(1), want: []int{1}},
		{name: "all of the image is what was allocated", namespace: "team", pod: "train", container: "main", visible: "all", want: []int{1}},
		{name: "replicas and another resource name", namespace: "team", pod: "train", container: "two", visible: "all", want: []int{2, 3}},
		{name: "one of two", namespace: "team", pod: "train", container: "two", visible: gpu(3), want: []int{3}},
		{name: "an init container shares what its pod has", namespace: "team", pod: "train", container: "prepare", visible: "all", want: []int{1, 2, 3}},
		{name: "another pod's UUID is refused", namespace: "team", pod: "train", container: "main", visible: gpu(0), refused: "is not this container's"},
		{name: "a pod of the same name in another namespace", namespace: "other", pod: "train", container: "main", visible: "all", want: []int{0}},
		{name: "a sidecar without an allocation starts without", namespace: "team", pod: "train", container: "sidecar", visible: "all"},
		{name: "a sidecar that names a GPU is refused", namespace: "team", pod: "train", container: "sidecar", visible: gpu(1), refused: "is not this container's"},
		{name: "a pod that the kubelet does not know starts without", namespace: "team", pod: "forged", container: "main", visible: "all"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			args := []string{"/test/opendev", "/dev/nvidiactl"}
			if len(tc.want) > 0 {
				args = []string{"nvidia-smi", "-L"}
			}
			r := h.Run(t, testenv.RunOptions{
				Runtime: "io.containerd.nvidia.v2", Image: image, Annotations: kubeAnnotations(tc.namespace, tc.pod, tc.container),
				Env: []string{"NVIDIA_VISIBLE_DEVICES=" + tc.visible}, Args: args,
			})
			if tc.refused != "" {
				if r.ExitCode == 0 || !strings.Contains(r.Stderr, tc.refused) {
					t.Errorf("exit status %d: %s", r.ExitCode, r.Stderr)
				}
				return
			}
			if len(tc.want) == 0 {
				if !strings.Contains(r.Stdout, "ENOENT") {
					t.Errorf("exit status %d: %s%s", r.ExitCode, r.Stdout, r.Stderr)
				}
				return
			}
			var want []string
			for _, i := range tc.want {
				want = append(want, gpu(i))
			}
			for i := range h.Driver.GPUs {
				listed, wanted := strings.Contains(r.Stdout, gpu(i)), strings.Contains(strings.Join(want, " "), gpu(i))
				if listed != wanted {
					t.Errorf("GPU %d listed %v, want %v:\n%s%s", i, listed, wanted, r.Stdout, r.Stderr)
				}
			}
		})
	}
}

func TestAKubeletThatDoesNotAnswerMeansNoGPU(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "kubelet.sock")
	h := newHost(t, hostOptions{config: "[policy]\nkubelet-socket = \"" + socket + "\"\n"})
	// A kubelet that accepts and says nothing.
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	image := h.image(t, "busybox")
	start := time.Now()
	r := h.Run(t, testenv.RunOptions{
		Runtime: "io.containerd.nvidia.v2", Image: image, Annotations: kubeAnnotations("team", "train", "main"),
		Env: []string{"NVIDIA_VISIBLE_DEVICES=all"}, Args: []string{"true"},
	})
	if r.ExitCode == 0 || !strings.Contains(r.Stderr, "team/train") || !strings.Contains(r.Stderr, socket) {
		t.Errorf("exit status %d: %s", r.ExitCode, r.Stderr)
	}
	if took := time.Since(start); took > 20*time.Second {
		t.Errorf("took %s", took)
	}
	t.Log(r.Stderr)
	// A container that asks for none does not wait for a kubelet.
	if r := h.Run(t, testenv.RunOptions{
		Runtime: "io.containerd.nvidia.v2", Image: image, Annotations: kubeAnnotations("team", "train", "main"), Args: []string{"true"},
	}); r.ExitCode != 0 {
		t.Errorf("a container without a request: %+v", r)
	}
}
