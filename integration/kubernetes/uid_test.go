package kubernetes

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
	deviceplugin "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/record"
)

// checkpointFile is where Kubernetes' device manager keeps what it allocated.
const checkpointFile = deviceplugin.DevicePluginPath + "kubelet_internal_checkpoint"

// sandboxConfig is what a pod's sandbox was made with: its containers are made with the same.
func (c *cluster) sandboxConfig(t testing.TB, sandbox string) *cri.PodSandboxConfig {
	t.Helper()
	status, err := c.runtime.PodSandboxStatus(t.Context(), &cri.PodSandboxStatusRequest{PodSandboxId: sandbox, Verbose: true})
	if err != nil {
		t.Fatal(err)
	}
	var info struct {
		Config *cri.PodSandboxConfig `json:"config"`
	}
	if err := json.Unmarshal([]byte(status.Info["info"]), &info); err != nil || info.Config == nil {
		t.Fatalf("sandbox %s is made with %v: %v", sandbox, info.Config, err)
	}
	return info.Config
}

// podSandbox is the sandbox of a pod, in which the test makes containers as the kubelet does.
type podSandbox struct {
	c        *cluster
	id       string
	config   *cri.PodSandboxConfig
	attempts uint32 // 0 is the kubelet's own container
}

func (c *cluster) podSandbox(t testing.TB, pod *corev1.Pod) *podSandbox {
	t.Helper()
	id := c.sandbox(t, pod)
	return &podSandbox{c: c, id: id, config: c.sandboxConfig(t, id)}
}

// main makes and starts a container with the name of the pod's, and returns what the shim recorded
// or why it does not start. The container is removed again.
func (s *podSandbox) main(t testing.TB, image string, env ...*cri.KeyValue) (plan record.Record, given bool, err error) {
	t.Helper()
	s.attempts++
	created, err := s.c.runtime.CreateContainer(t.Context(), &cri.CreateContainerRequest{PodSandboxId: s.id, SandboxConfig: s.config, Config: &cri.ContainerConfig{
		Metadata: &cri.ContainerMetadata{Name: "main", Attempt: s.attempts},
		// The kubelet considers it a container of this pod, but not the pod's own.
		Labels: map[string]string{
			"io.kubernetes.container.name": "made-by-the-test", "io.kubernetes.pod.name": s.config.Metadata.Name,
			"io.kubernetes.pod.namespace": s.config.Metadata.Namespace, "io.kubernetes.pod.uid": s.config.Metadata.Uid,
		},
		Image: &cri.ImageSpec{Image: image}, Command: []string{"/bin/sh", "-c", untilTerm}, Envs: env,
		Linux: &cri.LinuxContainerConfig{SecurityContext: &cri.LinuxContainerSecurityContext{NamespaceOptions: s.config.GetLinux().GetSecurityContext().GetNamespaceOptions()}},
	}})
	if err != nil {
		return plan, false, fmt.Errorf("before the shim is called: %w", err)
	}
	if _, err = s.c.runtime.StartContainer(t.Context(), &cri.StartContainerRequest{ContainerId: created.ContainerId}); err == nil {
		plan, given = s.c.record(t, created.ContainerId)
	}
	if _, err := s.c.runtime.RemoveContainer(t.Context(), &cri.RemoveContainerRequest{ContainerId: created.ContainerId}); err != nil {
		t.Error(err)
	}
	return plan, given, err
}

// visible is the variable of the contract.
func visible(value string) *cri.KeyValue {
	return &cri.KeyValue{Key: "NVIDIA_VISIBLE_DEVICES", Value: []byte(value)}
}

// A pod that was deleted by force continues for its grace period, and the kubelet makes its
// containers, while the next pod of its name exists and has GPUs. The test does what the kubelet
// would do, so that it happens every time.
func TestAPodDeletedByForceGetsNothingOfTheNextOneOfItsName(t *testing.T) {
	c := shared
	c.use(t, strategy{list: silent})
	old := newPod("same-name", run("main", greedyImage, "/bin/sh", "-c", "trap '' TERM; while :; do sleep 1; done"))
	old.Spec.TerminationGracePeriodSeconds = new(int64(20))
	c.startPod(t, old)
	c.check(t, old, "main", true)
	gone := c.podSandbox(t, old)
	if err := c.do("DELETE", podPath(old)+"?gracePeriodSeconds=0", nil, nil); err != nil {
		t.Fatal(err)
	}
	next := newPod("", with(wait("main", greedyImage), 4))
	next.Name = old.Name
	c.startPod(t, next)
	c.checkAllocated(t, next, "main", true, 4)
	create := func(what string) {
		t.Helper()
		plan, given, err := gone.main(t, greedyImage)
		if given || err != nil && !strings.Contains(err.Error(), "nvidia: ") {
			t.Errorf("%s: a container of the pod that is gone was given %v: %s; %v", what, plan.GPUs, plan.Grant, err)
		}
	}
	create("with the kubelet's checkpoint")
	withCheckpoint(t, func([]byte) []byte { return nil })
	create("without it")
}

// withCheckpoint changes the kubelet's checkpoint behind its back for the rest of the test; nil
// removes it. The kubelet goes by its memory.
func withCheckpoint(t testing.TB, change func([]byte) []byte) {
	t.Helper()
	was, err := os.ReadFile(checkpointFile)
	if err != nil {
		t.Fatal(err)
	}
	write := func(data []byte) error {
		if data == nil {
			return os.Remove(checkpointFile)
		}
		next := filepath.Join(deviceplugin.DevicePluginPath, ".test")
		return errors.Join(os.WriteFile(next, data, 0o600), os.Rename(next, checkpointFile))
	}
	if err := write(change(was)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := write(was); err != nil {
			t.Error(err)
		}
	})
}

// Whatever happens to the checkpoint, a container gets what was allocated to it or is refused.
func TestADamagedCheckpoint(t *testing.T) {
	c := shared
	const allocated, unknown, form = "allocated by the kubelet: ", "error: is not known: ", "is no checkpoint of a known kubelet"
	for _, tc := range []struct {
		name   string
		change func([]byte) []byte
		// named and all are how the grant of a container begins that names its GPU, and of one whose
		// image asks for all; or words of the error.
		named, all []string
	}{
		{"as it is", func(data []byte) []byte { return data }, []string{allocated}, []string{allocated}},
		{"missing", func([]byte) []byte { return nil }, []string{allocated}, []string{unknown, "no such file"}},
		{"cut off", func(data []byte) []byte { return data[:len(data)/2] }, []string{allocated}, []string{unknown, form}},
		{"of another version", func(data []byte) []byte {
			return []byte(strings.Replace(string(data), `"Checksum"`, `"Version":"v9","Checksum"`, 1))
		}, []string{allocated}, []string{unknown, form}},
		{"from before the allocation", func([]byte) []byte {
			return []byte(`{"Data":{"PodDeviceEntries":null,"RegisteredDevices":{}},"Checksum":1}`)
		}, []string{"error: is not this container's: no GPU was allocated"}, []string{""}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c.use(t, strategy{list: envvar})
			pod := newPod("checkpoint", with(wait("main", plainImage), 1))
			c.startPod(t, pod)
			gpu := c.checkAllocated(t, pod, "main", true, 1)[0]
			sandbox := c.podSandbox(t, pod)
			withCheckpoint(t, tc.change)
			for value, want := range map[string][]string{gpu.UUID: tc.named, "all": tc.all} {
				plan, given, err := sandbox.main(t, plainImage, visible(value))
				first, refused := strings.CutPrefix(want[0], "error: ")
				switch {
				case refused:
					for _, word := range append(want[1:], first) {
						if err == nil || !strings.Contains(err.Error(), word) {
							t.Errorf("%s: %v, want an error with %q", value, err, word)
						}
					}
				case err != nil || given != (first != "") || !strings.HasPrefix(plan.Grant, first):
					t.Errorf("%s: %v, given %v: %q, want %q", value, err, plan.GPUs, plan.Grant, first)
				case given && (len(plan.GPUs) != 1 || plan.GPUs[0].UUID != gpu.UUID):
					t.Errorf("%s: given %v, want %s", value, plan.GPUs, gpu.UUID)
				}
			}
			c.delete(t, pod)
		})
	}
}

// The checkpoint needs no kubelet: containers that are created while it restarts have their GPUs.
func TestAContainerThatIsCreatedWhileTheKubeletRestarts(t *testing.T) {
	c := shared
	c.use(t, strategy{list: silent})
	pod := newPod("restart", with(wait("main", greedyImage), 2))
	c.startPod(t, pod)
	gpus := c.checkAllocated(t, pod, "main", true, 2)
	sandbox := c.podSandbox(t, pod)
	create := func(when string) {
		t.Helper()
		plan, _, err := sandbox.main(t, greedyImage)
		if err != nil || len(plan.GPUs) != len(gpus) || !strings.Contains(plan.Grant, gpus[0].UUID) || !strings.Contains(plan.Grant, gpus[1].UUID) {
			t.Errorf("%s: %v, given %v (%s), want %v", when, err, plan.GPUs, plan.Grant, gpus)
		}
	}
	kubelet := c.processes["kubelet"]
	kubelet.Stop()
	create("without a kubelet")
	if err := kubelet.Start(); err != nil {
		t.Fatal(err)
	}
	ready := make(chan error, 1)
	go func() { ready <- errors.Join(c.Plugin.register(), c.awaitDevices(c.Plugin)) }()
	for done := false; !done; {
		select {
		case err := <-ready:
			if done = true; err != nil {
				t.Fatal(err)
			}
		default:
			create("while it starts")
		}
	}
	create("after it")
	after := newPod("restart-after", with(wait("main", greedyImage), 1), wait("none", greedyImage))
	c.startPod(t, after)
	c.checkAllocated(t, after, "main", true, 1)
	c.check(t, after, "none", true)
}

// A kubelet that cannot write its checkpoint admits no pod with a GPU, so what the file says stays
// what was allocated.
func TestAKubeletThatCannotWriteItsCheckpoint(t *testing.T) {
	c := shared
	c.use(t, strategy{list: silent})
	before := newPod("full-before", with(wait("main", greedyImage), 1))
	c.startPod(t, before)
	gpu := c.checkAllocated(t, before, "main", true, 1)[0]
	sandbox := c.podSandbox(t, before)
	fillKubeletsDisk(t)
	pod := newPod("full", with(wait("main", greedyImage), 1))
	c.create(t, pod)
	c.awaitPod(t, pod, "is not admitted", func(now corev1.Pod) error {
		if now.Status.Phase == corev1.PodFailed && strings.Contains(now.Status.Message, "no space left on device") {
			return nil
		}
		return fmt.Errorf("%s %s", now.Status.Phase, now.Status.Message)
	})
	plan, _, err := sandbox.main(t, greedyImage)
	if err != nil || len(plan.GPUs) != 1 || plan.GPUs[0].UUID != gpu.UUID {
		t.Errorf("%v, given %v: %s, want %s", err, plan.GPUs, plan.Grant, gpu.UUID)
	}
}

// fillKubeletsDisk leaves no free inode on the file system of the kubelet's checkpoint for the rest
// of the test.
func fillKubeletsDisk(t *testing.T) {
	t.Helper()
	const dir = "/var/lib/kubelet" // one of places
	limit := func(inodes uint64) error {
		return unix.Mount("tmpfs", dir, "tmpfs", unix.MS_REMOUNT|unix.MS_NOSUID|unix.MS_NODEV, fmt.Sprintf("nr_inodes=%d", inodes))
	}
	var st unix.Statfs_t
	err := unix.Statfs(dir, &st)
	if err == nil {
		err = limit(st.Files - st.Ffree)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := limit(st.Files); err != nil {
			t.Error(err)
		}
	})
}
