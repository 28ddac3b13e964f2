package kubernetes

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simdriver/sim"
)

// running starts a pod for each strategy that involves the shim, and returns a function that checks
// them all.
func running(t *testing.T) (pods []*corev1.Pod, check func(what string)) {
	t.Helper()
	c := shared
	type given struct {
		pod  *corev1.Pod
		gpus []sim.GPU
	}
	var all []given
	for i, s := range []strategy{{list: envvar}, {list: volumeMounts}, {list: silent, devices: true}} {
		c.use(t, s)
		pod := newPod("running-"+string(rune('a'+i)), with(wait("main", greedyImage), 1))
		c.startPod(t, pod)
		pods = append(pods, pod)
		all = append(all, given{pod, c.checkAllocated(t, pod, "main", true, 1)})
	}
	return pods, func(what string) {
		t.Helper()
		for _, g := range all {
			now := c.awaitRunning(t, g.pod)
			if n := status(t, now, "main").RestartCount; n != 0 {
				t.Errorf("%s: pod %s was restarted %d times", what, g.pod.Name, n)
			}
			c.check(t, g.pod, "main", true, g.gpus...)
		}
	}
}

// another starts one more pod, with the last GPU.
func another(t *testing.T) {
	t.Helper()
	c := shared
	c.use(t, strategy{list: envvar})
	pod := newPod("another", with(wait("main", greedyImage), 1))
	c.startPod(t, pod)
	c.checkAllocated(t, pod, "main", true, 1)
	greedy := newPod("another-greedy", wait("main", greedyImage))
	c.startPod(t, greedy)
	c.check(t, greedy, "main", true)
}

func TestPodsOutliveTheirKubelet(t *testing.T) {
	_, check := running(t)
	shared.restartKubelet(t)
	check("after the kubelet's restart")
	another(t)
	check("with another pod")
}

func TestPodsOutliveContainerd(t *testing.T) {
	c := shared
	pods, check := running(t)
	c.Restart(t)
	if err := c.await("the node", func() error {
		// The kubelet takes a moment to find its runtime again.
		_, err := c.exec(pods[0].Namespace, pods[0].Name, "main", "/bin/true")
		return errors.Join(err, c.ready())
	}); err != nil {
		t.Fatal(err)
	}
	check("after containerd's restart")
	another(t)
	check("with another pod")
}

// cpus are the processors that a container may use.
func cpus(t *testing.T, pod *corev1.Pod) string {
	t.Helper()
	got := shared.mustExec(t, pod, "main", "/bin/grep", "Cpus_allowed_list", "/proc/self/status")
	return strings.TrimSpace(strings.TrimPrefix(got, "Cpus_allowed_list:"))
}

// The kubelet's CPU manager takes a processor away from every running container when
// a pod gets one for itself: an update, which must not cost a GPU.
func TestTheCPUManagersUpdatesKeepTheGPU(t *testing.T) {
	c := shared
	for _, s := range []strategy{{list: envvar}, {list: envvar, devices: true}} {
		t.Run(s.String(), func(t *testing.T) {
			c.use(t, s)
			pod := newPod("updated", with(wait("main", greedyImage), 1))
			c.startPod(t, pod)
			gpus := c.checkAllocated(t, pod, "main", true, 1)
			before := cpus(t, pod)
			exclusive := wait("main", plainImage)
			exclusive.Resources.Limits = corev1.ResourceList{
				corev1.ResourceCPU: resource.MustParse("1"), corev1.ResourceMemory: resource.MustParse("64Mi"),
			}
			guaranteed := newPod("exclusive", exclusive)
			c.startPod(t, guaranteed)
			if err := c.await("fewer processors", func() error {
				if cpus(t, pod) == before {
					return errors.New("still " + before)
				}
				return nil
			}); err != nil {
				t.Fatal(err)
			}
			c.check(t, pod, "main", true, gpus...)
			c.delete(t, guaranteed)
			if err := c.await("all processors again", func() error {
				if now := cpus(t, pod); now != before {
					return errors.New("still " + now)
				}
				return nil
			}); err != nil {
				t.Fatal(err)
			}
			c.check(t, pod, "main", true, gpus...)
		})
	}
}

// When a pod is gone, nothing of it is left: no shim, no bundle.
func TestNothingIsLeftOfAPod(t *testing.T) {
	c := shared
	pod := newPod("gone", with(wait("one", greedyImage), 1), with(wait("two", greedyImage), 1), wait("none", greedyImage))
	now := c.startPod(t, pod)
	sandbox := c.sandbox(t, pod)
	ids := []string{sandbox, id(t, now, "one"), id(t, now, "two"), id(t, now, "none")}
	c.delete(t, pod)
	if err := c.await("the end of the pod's shim and bundles", func() error {
		if shims := c.ShimPIDs(sandbox); len(shims) > 0 {
			return errors.New("the shim lives")
		}
		for _, id := range ids {
			if _, err := os.Stat(c.bundle(id)); !errors.Is(err, os.ErrNotExist) {
				return fmt.Errorf("the bundle of %s is still there", id)
			}
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
}
