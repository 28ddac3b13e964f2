package kubernetes

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testenv"
)

// How many pods the test of leftovers makes. `make soak` sets more.
var (
	gpuPods   = flag.Int("gpu-pods", 20, "pods with a GPU")
	plainPods = flag.Int("plain-pods", 10, "pods without a GPU, half of them with the stock shim")
	cutPods   = flag.Int("cut-pods", 8, "pods of each kind whose creation a client cuts, at other moments each")
)

// Pods are created and deleted, some of them while they are created, and other clients cut
// creations at every step, while kubelet, device plugin and containerd are restarted. Nothing of
// them stays. What the stock shim leaves is counted apart.
func TestNothingOutlivesItsPod(t *testing.T) {
	c := shared
	c.startPod(t, newPod("settle", with(wait("main", greedyImage), 1))) // makes the driver's view
	c.sweep(t)
	testenv.Await(t, "the end of all shims", func() bool {
		return !strings.Contains(strings.Join(c.Snapshot(t).Section("processes"), "\n"), "containerd-shim-")
	})
	bundles := filepath.Join(c.State, "io.containerd.runtime.v2.task", criNamespace)
	dirs := []string{bundles, c.Driver.StateDir}
	before := c.Snapshot(t, dirs...)
	ch := &churn{cluster: c, handlers: map[string]string{}, fates: map[string]int{}}
	stop := ch.watch(t)
	began := time.Now()
	ch.run(t)
	t.Logf("%v: %v", time.Since(began).Round(time.Second), ch.fates)
	if ran, pods := ch.fates["nvidia GPU: ran"], *gpuPods; ran < pods/4 {
		t.Errorf("%d of %d pods with a GPU have run: the test shows nothing", ran, pods)
	}
	c.sweep(t)
	var ours, stocks []string
	testenv.Until(func() bool {
		ours, stocks = ch.split(before.Diff(c.Snapshot(t, dirs...)))
		return len(ours) == 0
	})
	for range 50 { // what is left of the stock shim is only counted
		if len(stocks) == 0 {
			break
		}
		time.Sleep(100 * time.Millisecond)
		_, stocks = ch.split(before.Diff(c.Snapshot(t, dirs...)))
	}
	stop()
	t.Logf("left: %d; left by the stock shim or containerd: %d", len(ours), len(stocks))
	for _, line := range stocks {
		t.Logf("left by the stock shim or containerd: %s\n%s", line, ch.logged(line))
	}
	for _, line := range ours {
		t.Errorf("left: %s\n%s", line, ch.logged(line))
	}
}

// churn is what a run of the test needs and counts.
type churn struct {
	*cluster
	mu       sync.Mutex
	handlers map[string]string // of each sandbox and container, by id
	fates    map[string]int    // pods by kind and what became of them
	done     atomic.Int64      // pods
}

func (ch *churn) count(fate string) {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	ch.fates[fate]++
}

// kind is one kind of pod.
type kind struct {
	name    string
	handler string // "" is the default: the stock shim
	gpu     bool
}

var (
	gpuKind   = kind{"nvidia GPU", handler, true}
	plainKind = kind{"nvidia plain", handler, false}
	stockKind = kind{"stock plain", "", false}
)

// run makes all pods and restarts the daemons meanwhile.
func (ch *churn) run(t *testing.T) {
	var running sync.WaitGroup
	each := func(workers, n int, f func(i int) error) {
		var next atomic.Int64
		for range workers {
			running.Go(func() {
				for i := int(next.Add(1)); i <= n; i = int(next.Add(1)) {
					if err := f(i); err != nil {
						t.Error(err)
					}
					ch.done.Add(1)
				}
			})
		}
	}
	each(len(ch.Driver.GPUs), *gpuPods, func(i int) error { return ch.pod(gpuKind, i) })
	each(2, *plainPods, func(i int) error { return ch.pod([]kind{plainKind, stockKind}[i%2], i/2) })
	kinds := []kind{{"nvidia GPU", trustingHandler, true}, plainKind, stockKind}
	each(1, len(kinds)**cutPods, func(i int) error { return ch.cut(kinds[i%len(kinds)], i/len(kinds)) })
	all := *gpuPods + *plainPods + len(kinds)**cutPods
	for i, restart := range []func(testing.TB){ch.restartKubelet, ch.restartPlugin, ch.cluster.Restart, ch.restartKubelet} {
		for int(ch.done.Load()) < (i+1)*all/6 { // every pod has a time limit
			time.Sleep(10 * time.Millisecond)
		}
		restart(t)
	}
	running.Wait()
}

// pod creates a pod and deletes it: one of four before it runs.
func (ch *churn) pod(k kind, i int) error {
	main := wait("main", plainImage)
	if k.gpu {
		main = with(wait("main", greedyImage), 1)
	}
	pod := newPod("churn", main)
	if k.handler == "" {
		pod.Spec.RuntimeClassName = nil
	}
	if err := ch.do("POST", "/api/v1/namespaces/"+pod.Namespace+"/pods", pod, nil); err != nil {
		return err
	}
	if i%4 == 3 {
		time.Sleep(time.Duration(i%16) * 100 * time.Millisecond)
		ch.count(k.name + ": cut")
	} else if fate, err := ch.fate(pod); err != nil {
		return err
	} else {
		ch.count(k.name + ": " + fate)
	}
	var gone error
	if !testenv.Until(func() bool {
		gone = ch.do("DELETE", podPath(pod), nil, nil)
		return isNotFound(gone)
	}) {
		return fmt.Errorf("pod %s does not go: %w", pod.Name, gone)
	}
	return nil
}

// fate waits until a pod runs or has ended: a kubelet that was restarted admits no pod until the
// plugin is known again.
func (ch *churn) fate(pod *corev1.Pod) (fate string, err error) {
	if !testenv.Until(func() bool {
		var now corev1.Pod
		if err = ch.do("GET", podPath(pod), nil, &now); err != nil {
			return false
		}
		switch now.Status.Phase {
		case corev1.PodRunning:
			fate = "ran"
		case corev1.PodFailed:
			fate = "failed"
			if now.Status.Reason != "" {
				fate = "not admitted, " + now.Status.Reason
			}
			for _, s := range now.Status.ContainerStatuses {
				if s.State.Terminated != nil {
					fate += ": " + s.State.Terminated.Message
				}
			}
		}
		return fate != ""
	}) {
		return "", fmt.Errorf("pod %s neither runs nor fails: %w", pod.Name, err)
	}
	return fate, nil
}

// cut creates a pod as the kubelet does and stops waiting in one of the steps.
func (ch *churn) cut(k kind, i int) error {
	name := fmt.Sprintf("cut-%d", podNumber.Add(1))
	config := &cri.PodSandboxConfig{
		Metadata: &cri.PodSandboxMetadata{Name: name, Namespace: "default", Uid: name},
		Labels:   map[string]string{"cut": name},
		Linux: &cri.LinuxPodSandboxConfig{
			CgroupParent:    "/" + ch.ID,
			SecurityContext: &cri.LinuxSandboxSecurityContext{NamespaceOptions: &cri.NamespaceOption{Network: cri.NamespaceMode_NODE}},
		},
	}
	// From 5 ms to 0.6 s, the time of a step on a busy host.
	part := float64(i/3) / max(1, float64(*cutPods/3-1))
	limit := time.Duration(5 * math.Pow(120, part) * float64(time.Millisecond))
	step, err := ch.createUntil(config, k, i%3, limit)
	if err != nil {
		step += " cut"
	}
	ch.count(k.name + ": " + step)
	return ch.removeSandboxes(&cri.PodSandboxFilter{LabelSelector: config.Labels})
}

// createUntil takes the steps of a pod with one container. The step with this number has a time
// limit. It returns the last step that was begun, and why that failed.
func (ch *churn) createUntil(config *cri.PodSandboxConfig, k kind, cut int, limit time.Duration) (step string, err error) {
	within := func(number int) (context.Context, context.CancelFunc) {
		if number == cut {
			return context.WithTimeout(context.Background(), limit)
		}
		return context.WithTimeout(context.Background(), time.Minute)
	}
	ctx, cancel := within(0)
	defer cancel()
	pod, err := ch.runtime.RunPodSandbox(ctx, &cri.RunPodSandboxRequest{Config: config, RuntimeHandler: k.handler})
	if err != nil {
		return "sandbox", err
	}
	container := &cri.ContainerConfig{
		Metadata: &cri.ContainerMetadata{Name: "main"}, Image: &cri.ImageSpec{Image: plainImage},
		Command: []string{"/bin/sh", "-c", untilTerm},
		Linux:   &cri.LinuxContainerConfig{SecurityContext: &cri.LinuxContainerSecurityContext{NamespaceOptions: config.Linux.SecurityContext.NamespaceOptions}},
	}
	if k.gpu {
		container.Image.Image = greedyImage // so that all share a view
	}
	ctx, cancel = within(1)
	defer cancel()
	created, err := ch.runtime.CreateContainer(ctx, &cri.CreateContainerRequest{PodSandboxId: pod.PodSandboxId, Config: container, SandboxConfig: config})
	if err != nil {
		return "container", err
	}
	ctx, cancel = within(2)
	defer cancel()
	_, err = ch.runtime.StartContainer(ctx, &cri.StartContainerRequest{ContainerId: created.ContainerId})
	return "start", err
}

// sweep deletes all pods, and what the kubelet's garbage collection would remove some minutes later.
func (c *cluster) sweep(t *testing.T) {
	t.Helper()
	if err := errors.Join(c.drain(), c.removeSandboxes(nil)); err != nil {
		t.Error(err)
	}
}

// removeSandboxes stops and removes pods, also while containerd is restarted.
func (c *cluster) removeSandboxes(filter *cri.PodSandboxFilter) error {
	var last error
	if !testenv.Until(func() bool {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		list, err := c.runtime.ListPodSandbox(ctx, &cri.ListPodSandboxRequest{Filter: filter})
		last = err
		for _, s := range list.GetItems() {
			_, stopped := c.runtime.StopPodSandbox(ctx, &cri.StopPodSandboxRequest{PodSandboxId: s.Id})
			_, removed := c.runtime.RemovePodSandbox(ctx, &cri.RemovePodSandboxRequest{PodSandboxId: s.Id})
			last = errors.Join(last, stopped, removed)
		}
		return last == nil
	}) {
		return fmt.Errorf("remove pods: %w", last)
	}
	return nil
}

// watch notes the handler of each sandbox and container until stop is called.
func (ch *churn) watch(t *testing.T) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	var watching sync.WaitGroup
	watching.Go(func() {
		for ; ctx.Err() == nil; time.Sleep(20 * time.Millisecond) {
			sandboxes, err := ch.runtime.ListPodSandbox(ctx, &cri.ListPodSandboxRequest{})
			if err != nil {
				continue // containerd is restarted
			}
			containers, err := ch.runtime.ListContainers(ctx, &cri.ListContainersRequest{})
			if err != nil {
				continue
			}
			ch.mu.Lock()
			for _, s := range sandboxes.Items {
				ch.handlers[s.Id] = s.RuntimeHandler
			}
			for _, c := range containers.Containers {
				ch.handlers[c.Id] = ch.handlers[c.PodSandboxId]
			}
			ch.mu.Unlock()
		}
	})
	return func() { cancel(); watching.Wait() }
}

var longID = regexp.MustCompile(`[0-9a-f]{64}`)

// split separates what the stock shim and containerd leave.
func (ch *churn) split(left string) (ours, stocks []string) {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	for line := range strings.Lines(left) {
		if strings.Contains(line, ": - ") { // what an earlier test left has gone
			continue
		}
		// containerd renames a bundle to a hidden one and removes it. It is for good if containerd is
		// ended in between: no shim is asked. The root file system is unmounted before.
		hidden := strings.Contains(line, "/"+criNamespace+"/.") && !strings.Contains(line, "/rootfs")
		if hidden || ch.isStock(line) {
			stocks = append(stocks, line)
		} else {
			ours = append(ours, line)
		}
	}
	return ours, stocks
}

// logged returns what containerd and the shims have logged about the container that a line names.
func (ch *churn) logged(line string) (text string) {
	id := longID.FindString(line)
	if id == "" {
		return ""
	}
	for entry := range strings.Lines(ch.Log()) {
		if strings.Contains(entry, id) {
			text += entry
		}
	}
	return text
}

// isStock reports whether a line names a container of the stock shim, or that shim.
func (ch *churn) isStock(line string) bool {
	if strings.Contains(line, "containerd-shim-runc-v2") {
		return true
	}
	if handler, known := ch.handlers[longID.FindString(line)]; known {
		return handler == "" && !strings.Contains(line, "containerd-shim-nvidia")
	}
	// A sandbox that was cut is in no list.
	return strings.Contains(ch.logged(line), "runtime=io.containerd.runc.v2")
}
