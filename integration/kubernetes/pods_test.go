package kubernetes

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simdriver/sim"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simhost"
)

// untilTerm waits until it gets SIGTERM, which a process with PID 1 ignores by default.
const untilTerm = `trap "exit 0" TERM; sleep 86400 & wait`

// wait is a container that waits.
func wait(name, image string) corev1.Container {
	return run(name, image, "/bin/sh", "-c", untilTerm)
}

// run is a container that runs a command.
func run(name, image string, command ...string) corev1.Container {
	return corev1.Container{Name: name, Image: image, Command: command, ImagePullPolicy: corev1.PullNever}
}

// with gives a container a limit of GPUs.
func with(c corev1.Container, count int64) corev1.Container {
	return limited(c, "nvidia.com/gpu", count)
}

func limited(c corev1.Container, name corev1.ResourceName, count int64) corev1.Container {
	c.Resources.Limits = corev1.ResourceList{name: *resource.NewQuantity(count, resource.DecimalSI)}
	return c
}

// env adds a variable to a container.
func env(c corev1.Container, name, value string) corev1.Container {
	c.Env = append(slices.Clone(c.Env), corev1.EnvVar{Name: name, Value: value})
	return c
}

// secured gives a container a security context.
func secured(c corev1.Container, s corev1.SecurityContext) corev1.Container {
	c.SecurityContext = &s
	return c
}

var podNumber atomic.Int64

// newPod is a pod of the runtime class, on the node's network. Its name is new.
func newPod(name string, containers ...corev1.Container) *corev1.Pod {
	name = fmt.Sprintf("%s-%d", name, podNumber.Add(1))
	return &corev1.Pod{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: metav1.NamespaceDefault},
		Spec: corev1.PodSpec{
			RuntimeClassName: new(handler), HostNetwork: true, RestartPolicy: corev1.RestartPolicyNever,
			TerminationGracePeriodSeconds: new(int64(1)), EnableServiceLinks: new(false), AutomountServiceAccountToken: new(false),
			Containers: containers,
		},
	}
}

func podPath(pod *corev1.Pod) string {
	return "/api/v1/namespaces/" + pod.Namespace + "/pods/" + pod.Name
}

// create makes a pod, which is deleted when the test ends.
func (c *cluster) create(t testing.TB, pod *corev1.Pod) {
	t.Helper()
	t.Cleanup(func() {
		// The scheduler knows when its GPUs are free; no test has to wait for that.
		if err := c.do("DELETE", podPath(pod), nil, nil); err != nil && !isNotFound(err) {
			t.Error(err)
		}
	})
	if err := c.do("POST", "/api/v1/namespaces/"+pod.Namespace+"/pods", pod, nil); err != nil {
		t.Fatal(err)
	}
}

// delete deletes a pod and waits until the kubelet has released it.
func (c *cluster) delete(t testing.TB, pod *corev1.Pod) {
	t.Helper()
	if err := c.do("DELETE", podPath(pod), nil, nil); err != nil && !isNotFound(err) {
		t.Error(err)
		return
	}
	if err := c.await("the end of pod "+pod.Name, func() error {
		err := c.do("GET", podPath(pod), nil, nil)
		if err == nil {
			return errors.New("it is still there")
		}
		if isNotFound(err) {
			return nil
		}
		return err
	}); err != nil {
		t.Error(err)
	}
}

// namespace makes a namespace, once.
func (c *cluster) namespace(t testing.TB, name string) {
	t.Helper()
	err := c.do("POST", "/api/v1/namespaces", map[string]any{
		"apiVersion": "v1", "kind": "Namespace", "metadata": map[string]string{"name": name},
	}, nil)
	if err != nil && !hasCode(err, http.StatusConflict) {
		t.Fatal(err)
	}
}

// awaitPod polls a pod until done returns no error.
func (c *cluster) awaitPod(t testing.TB, pod *corev1.Pod, what string, done func(corev1.Pod) error) corev1.Pod {
	t.Helper()
	var now corev1.Pod
	if err := c.await("pod "+pod.Name+": "+what, func() error {
		now = corev1.Pod{}
		if err := c.do("GET", podPath(pod), nil, &now); err != nil {
			return err
		}
		return done(now)
	}); err != nil {
		status, _ := json.MarshalIndent(now.Status, "", " ")
		t.Fatalf("%v\n%s\n%s", err, status, c.events(pod))
	}
	return now
}

// startPod creates a pod and returns it when all its containers run.
func (c *cluster) startPod(t testing.TB, pod *corev1.Pod) corev1.Pod {
	t.Helper()
	c.create(t, pod)
	return c.awaitRunning(t, pod)
}

func (c *cluster) awaitRunning(t testing.TB, pod *corev1.Pod) corev1.Pod {
	t.Helper()
	return c.awaitPod(t, pod, "all containers run", func(now corev1.Pod) error {
		if len(now.Status.ContainerStatuses) != len(pod.Spec.Containers) {
			return errors.New("not all containers are known")
		}
		for _, s := range now.Status.ContainerStatuses {
			if s.State.Running == nil {
				return fmt.Errorf("container %s does not run", s.Name)
			}
		}
		return nil
	})
}

// finish creates a pod and returns it when all its containers have ended.
func (c *cluster) finish(t testing.TB, pod *corev1.Pod) corev1.Pod {
	t.Helper()
	c.create(t, pod)
	return c.awaitEnd(t, pod)
}

func (c *cluster) awaitEnd(t testing.TB, pod *corev1.Pod) corev1.Pod {
	t.Helper()
	return c.awaitPod(t, pod, "has ended", func(now corev1.Pod) error {
		if now.Status.Phase != corev1.PodSucceeded && now.Status.Phase != corev1.PodFailed {
			return fmt.Errorf("its phase is %s", now.Status.Phase)
		}
		return nil
	})
}

// status finds a container's status among those of all kinds.
func status(t testing.TB, pod corev1.Pod, name string) corev1.ContainerStatus {
	t.Helper()
	for _, s := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses, pod.Status.EphemeralContainerStatuses) {
		if s.Name == name {
			return s
		}
	}
	t.Fatalf("pod %s has no container %s", pod.Name, name)
	return corev1.ContainerStatus{}
}

// id is a container's id in containerd.
func id(t testing.TB, pod corev1.Pod, name string) string {
	t.Helper()
	return strings.TrimPrefix(status(t, pod, name).ContainerID, "containerd://")
}

// message is the message in the pod's status for a container that could not start.
func message(t testing.TB, pod corev1.Pod, name string) string {
	t.Helper()
	s := status(t, pod, name)
	for _, state := range []corev1.ContainerState{s.State, s.LastTerminationState} {
		if state.Terminated != nil && state.Terminated.Reason == "StartError" {
			return state.Terminated.Message
		}
		if state.Waiting != nil && state.Waiting.Message != "" {
			return state.Waiting.Message
		}
	}
	return ""
}

// events are those of a pod, for the log of a test that failed.
func (c *cluster) events(pod *corev1.Pod) string {
	var list corev1.EventList
	if err := c.do("GET", "/api/v1/namespaces/"+pod.Namespace+"/events?fieldSelector=involvedObject.name%3D"+pod.Name, nil, &list); err != nil {
		return err.Error()
	}
	var b strings.Builder
	for _, e := range list.Items {
		fmt.Fprintf(&b, "%s: %s\n", e.Reason, e.Message)
	}
	return b.String()
}

// logs is what a container printed, as `kubectl logs` has it.
func (c *cluster) logs(t testing.TB, pod *corev1.Pod, container string) string {
	t.Helper()
	data, err := c.raw("GET", podPath(pod)+"/log?container="+container, "", nil)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// allocated asks the kubelet, with Kubernetes' own client, what it allocated.
func (c *cluster) allocated(t testing.TB, pod *corev1.Pod, container string) []string {
	t.Helper()
	conn, err := grpc.NewClient("unix://"+c.podResources(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	r, err := podresources.NewPodResourcesListerClient(conn).List(ctx, &podresources.ListPodResourcesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	var ids []string
	for _, p := range r.PodResources {
		for _, cont := range p.Containers {
			if p.Namespace != pod.Namespace || p.Name != pod.Name || cont.Name != container {
				continue
			}
			for _, d := range cont.Devices {
				ids = append(ids, d.DeviceIds...)
			}
		}
	}
	return ids
}

// allocatable returns how many devices of a resource the kubelet can allocate or has allocated.
func (c *cluster) allocatable(resource string) (n int, err error) {
	conn, err := grpc.NewClient("unix://"+c.podResources(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	r, err := podresources.NewPodResourcesListerClient(conn).GetAllocatableResources(ctx, &podresources.AllocatableResourcesRequest{})
	for _, d := range r.GetDevices() {
		if d.ResourceName == resource {
			n += len(d.DeviceIds)
		}
	}
	return n, err
}

// gpus finds GPUs by their ids, those of replicas included.
func (c *cluster) gpus(t testing.TB, ids ...string) []sim.GPU {
	t.Helper()
	var found []sim.GPU
	for _, id := range ids {
		id, _, _ = strings.Cut(id, "::")
		i := slices.IndexFunc(c.Driver.GPUs, func(g sim.GPU) bool { return g.UUID == id })
		if i < 0 {
			t.Fatalf("%q is no GPU of this node", id)
		}
		if !slices.Contains(found, c.Driver.GPUs[i]) {
			found = append(found, c.Driver.GPUs[i])
		}
	}
	return found
}

var gpuNode = regexp.MustCompile(`^nvidia[0-9]|^nvidia-caps/`)

// nodes are the nodes of GPUs and MIG devices.
func (c *cluster) nodes() []simhost.Node {
	return slices.DeleteFunc(c.Nodes(), func(n simhost.Node) bool { return !gpuNode.MatchString(n.Name) })
}

// probe is a command that prints, for compare, what a container has of GPUs.
func (c *cluster) probe() []string { return c.ProbeArgs(c.nodes()...) }

// compare fails the test unless a container that printed out was given exactly these GPUs and MIG
// devices. With mknod, nodes of the container's own making are compared as well, so that the result
// depends on the device cgroup and not on /dev.
func (c *cluster) compare(t testing.TB, out string, mknod bool, gpus, mig []int) {
	t.Helper()
	got, want := simhost.Parse(out), c.ExpectNodes(c.nodes(), gpus, mig)
	want.Dev, want.CUDA, want.ProcGPUs = got.Dev, got.CUDA, got.ProcGPUs
	if !mknod {
		want.Mknod = got.Mknod
	}
	simhost.Compare(t, got, want)
}

// check runs the probe in a running container.
func (c *cluster) check(t testing.TB, pod *corev1.Pod, container string, mknod bool, gpus ...sim.GPU) {
	t.Helper()
	var indices []int
	for _, gpu := range gpus {
		indices = append(indices, gpu.Index)
	}
	c.compare(t, c.mustExec(t, pod, container, c.probe()...), mknod, indices, nil)
}

// checkAllocated is check for what the kubelet says it allocated, which must be count
// GPUs. It returns them.
func (c *cluster) checkAllocated(t testing.TB, pod *corev1.Pod, container string, mknod bool, count int) []sim.GPU {
	t.Helper()
	gpus := c.gpus(t, c.allocated(t, pod, container)...)
	if len(gpus) != count {
		t.Errorf("%s/%s: the kubelet allocated %d GPUs, want %d", pod.Name, container, len(gpus), count)
	}
	c.check(t, pod, container, mknod, gpus...)
	return gpus
}

// exec runs a command in a container, as the kubelet's probes do, and returns its
// output.
func (c *cluster) exec(namespace, pod, container string, command ...string) (string, error) {
	var now corev1.Pod
	if err := c.do("GET", "/api/v1/namespaces/"+namespace+"/pods/"+pod, nil, &now); err != nil {
		return "", err
	}
	for _, s := range slices.Concat(now.Status.ContainerStatuses, now.Status.InitContainerStatuses, now.Status.EphemeralContainerStatuses) {
		if s.Name != container {
			continue
		}
		r, err := c.runtime.ExecSync(context.Background(), &cri.ExecSyncRequest{ContainerId: strings.TrimPrefix(s.ContainerID, "containerd://"), Cmd: command, Timeout: 60})
		if err == nil && r.ExitCode != 0 {
			err = fmt.Errorf("exit status %d", r.ExitCode)
		}
		return string(r.GetStdout()) + string(r.GetStderr()), err
	}
	return "", fmt.Errorf("pod %s has no container %s", pod, container)
}

// mustExec is exec for a command that has to succeed.
func (c *cluster) mustExec(t testing.TB, pod *corev1.Pod, container string, command ...string) string {
	t.Helper()
	out, err := c.exec(pod.Namespace, pod.Name, container, command...)
	if err != nil {
		t.Errorf("%s/%s: %q: %v\n%s", pod.Name, container, command, err, out)
	}
	return out
}

// drain deletes all pods and waits until the kubelet has released them.
func (c *cluster) drain() error {
	return c.await("the end of all pods", func() error {
		var list corev1.PodList
		if err := c.do("GET", "/api/v1/pods", nil, &list); err != nil {
			return err
		}
		for _, pod := range list.Items {
			if pod.DeletionTimestamp == nil {
				if err := c.do("DELETE", podPath(&pod), nil, nil); err != nil && !isNotFound(err) {
					return err
				}
			}
		}
		if n := len(list.Items); n > 0 {
			return fmt.Errorf("%d are still there", n)
		}
		return nil
	})
}

// refused creates a pod and checks that its container does not start, for the reason
// given, and that this is in the pod's status.
func (c *cluster) refused(t testing.TB, pod *corev1.Pod, container string, reasons ...string) {
	t.Helper()
	c.create(t, pod)
	c.awaitRefused(t, pod, container, reasons...)
}

// awaitRefused is refused for a pod that has been created.
func (c *cluster) awaitRefused(t testing.TB, pod *corev1.Pod, container string, reasons ...string) {
	t.Helper()
	now := c.awaitEnd(t, pod)
	got := message(t, now, container)
	for _, reason := range reasons {
		if !strings.Contains(got, reason) {
			t.Errorf("the status of %s/%s says %q, want %q in it", pod.Name, container, got, reason)
		}
	}
	if strings.Contains(strings.TrimSpace(got), "\n") {
		t.Errorf("the message has more than one line: %q", got)
	}
	t.Logf("pod status: %s", got)
}
