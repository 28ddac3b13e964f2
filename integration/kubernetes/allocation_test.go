package kubernetes

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simdriver/sim"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simhost"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testenv"
)

// use sets the device plugins' strategy for the rest of the test.
func (c *cluster) use(t *testing.T, s strategy) {
	t.Helper()
	c.Plugin.use(s)
	t.Cleanup(func() { c.Plugin.use(strategy{list: envvar}) })
}

// If a plugin sets nothing, the shim sees only an image that asks for everything: the device nodes,
// or else the kubelet, say what was allocated.
func TestAllMeansWhatWasAllocated(t *testing.T) {
	c := shared
	for _, devices := range []bool{false, true} {
		c.use(t, strategy{list: silent, devices: devices})
		pod := newPod("all", with(wait("main", greedyImage), 2))
		c.startPod(t, pod)
		c.checkAllocated(t, pod, "main", true, 2)
		c.delete(t, pod)
	}
}

func TestT48PodsOfOneImageStartedAtOnceGetEachItsOwn(t *testing.T) {
	c := shared
	c.use(t, strategy{list: silent})
	var pods []*corev1.Pod
	for i := range c.Driver.GPUs {
		pods = append(pods, newPod(fmt.Sprintf("at-once-%d", i), with(wait("main", greedyImage), 1)))
	}
	var wg sync.WaitGroup
	for _, pod := range pods {
		wg.Go(func() { c.create(t, pod) })
	}
	wg.Wait()
	var seen []sim.GPU
	for _, pod := range pods {
		c.awaitRunning(t, pod)
		for _, gpu := range c.checkAllocated(t, pod, "main", true, 1) {
			if slices.Contains(seen, gpu) {
				t.Errorf("GPU %d was given twice", gpu.Index)
			}
			seen = append(seen, gpu)
		}
	}
}

// sandbox finds the sandbox of a pod.
func (c *cluster) sandbox(t testing.TB, pod *corev1.Pod) string {
	t.Helper()
	r, err := c.runtime.ListPodSandbox(t.Context(), &cri.ListPodSandboxRequest{Filter: &cri.PodSandboxFilter{
		// Those of pods that are gone wait for the kubelet's garbage collection.
		State:         &cri.PodSandboxStateValue{State: cri.PodSandboxState_SANDBOX_READY},
		LabelSelector: map[string]string{"io.kubernetes.pod.name": pod.Name, "io.kubernetes.pod.namespace": pod.Namespace},
	}})
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Items) != 1 {
		t.Fatalf("pod %s has %d sandboxes", pod.Name, len(r.Items))
	}
	return r.Items[0].Id
}

func TestContainersOfOnePodHaveDifferentGPUsAndOneShim(t *testing.T) {
	c := shared
	for _, s := range []strategy{{list: envvar}, {list: volumeMounts}, {list: silent, devices: true}} {
		t.Run(s.String(), func(t *testing.T) {
			c.use(t, s)
			pod := newPod("several", with(wait("one", greedyImage), 1), with(wait("two", greedyImage), 2), wait("none", greedyImage))
			now := c.startPod(t, pod)
			one := c.checkAllocated(t, pod, "one", true, 1)
			two := c.checkAllocated(t, pod, "two", true, 2)
			if slices.Contains(two, one[0]) {
				t.Errorf("GPU %d was given twice", one[0].Index)
			}
			c.check(t, pod, "none", true)
			for name, gpus := range map[string][]sim.GPU{"one": one, "two": two, "none": nil} {
				c.checkPlan(t, pod, name, gpus)
			}
			sandbox := c.sandbox(t, pod)
			if shims := c.ShimPIDs(sandbox); len(shims) != 1 {
				t.Errorf("the pod has shims %v, want one", shims)
			}
			for _, name := range []string{"one", "two", "none"} {
				if shims := c.ShimPIDs(id(t, now, name)); len(shims) != 0 {
					t.Errorf("container %s has shims of its own: %v", name, shims)
				}
			}
			c.checkSandbox(t, sandbox)
		})
	}
}

// checkPlan checks that `nvidia-shimctl plan --pod` has the GPUs of a container that runs.
func (c *cluster) checkPlan(t *testing.T, pod *corev1.Pod, container string, gpus []sim.GPU) {
	t.Helper()
	out, err := exec.Command(filepath.Join(testenv.ShimDir(), "nvidia-shimctl"), "--config", c.Driver.ConfigPath, "--json",
		"plan", "--state", c.State, "--pod", pod.Namespace+"/"+pod.Name, "--container", container).Output()
	var p struct {
		GPU       bool
		GPUs      []sim.GPU
		Container struct{ Pod, Name string }
	}
	if err := errors.Join(err, json.Unmarshal(out, &p)); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	var want, have []string
	for _, gpu := range gpus {
		want = append(want, gpu.UUID)
	}
	for _, gpu := range p.GPUs {
		have = append(have, gpu.UUID)
	}
	slices.Sort(want)
	slices.Sort(have)
	if !slices.Equal(have, want) || p.GPU != (len(gpus) > 0) || p.Container.Pod != pod.Name || p.Container.Name != container {
		t.Errorf("container %s has %q: %s", container, want, out)
	}
}

// checkSandbox checks that a pod's first container was given nothing, although its
// image asks for everything.
func (c *cluster) checkSandbox(t *testing.T, id string) {
	t.Helper()
	config, err := os.ReadFile(filepath.Join(c.bundle(id), "config.json"))
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(config), "NVIDIA_VISIBLE_DEVICES=all") {
		t.Error("the sandbox's image does not ask for anything: the test shows nothing")
	}
	for _, word := range []string{"/dev/nvidia", "/usr/local/nvidia", c.Driver.Root, c.Driver.StateDir} {
		if strings.Contains(string(config), word) {
			t.Errorf("the sandbox's config.json has %s in it", word)
		}
	}
	if _, err := os.Stat(filepath.Join(c.bundle(id), "nvidia.json")); !os.IsNotExist(err) {
		t.Errorf("the sandbox was given something: %v", err)
	}
}

func TestInitContainersSharePodsGPUs(t *testing.T) {
	c := shared
	for _, s := range []strategy{{list: envvar}, {list: volumeMounts, devices: true}} {
		t.Run(s.String(), func(t *testing.T) {
			c.use(t, s)
			pod := newPod("init", with(wait("main", plainImage), 1))
			pod.Spec.InitContainers = []corev1.Container{with(run("prepare", plainImage, c.probe()...), 1)}
			c.startPod(t, pod)
			gpus := c.checkAllocated(t, pod, "main", true, 1)
			// The kubelet passes an init container's devices on to the next container.
			c.compare(t, c.logs(t, pod, "prepare"), true, []int{gpus[0].Index}, nil)
		})
	}
	// The kubelet's API says nothing of init containers (kubernetes issue 126765), its checkpoint
	// does.
	t.Run("an init container alone", func(t *testing.T) {
		for _, s := range []strategy{{list: envvar}, {list: envvar, devices: true}, {list: volumeMounts}} {
			c.use(t, s)
			pod := newPod("init-alone", run("main", plainImage, c.probe()...))
			pod.Spec.InitContainers = []corev1.Container{with(run("prepare", plainImage, c.probe()...), 1)}
			now := c.finish(t, pod)
			if got := c.logs(t, pod, "prepare"); len(simhost.Parse(got).SMI) != 1 || strings.Count(got, "ENXIO") != 2 {
				t.Fatalf("%s: init container: %q; pod status: %s", s, got, message(t, now, "prepare"))
			}
			c.compare(t, c.logs(t, pod, "main"), true, nil, nil)
		}
	})
	t.Run("an init container with more than the others", func(t *testing.T) {
		for _, s := range []strategy{{list: envvar}, {list: silent}} {
			c.use(t, s)
			pod := newPod("init-more", with(wait("main", greedyImage), 1))
			pod.Spec.InitContainers = []corev1.Container{with(run("prepare", greedyImage, c.probe()...), 2)}
			c.startPod(t, pod)
			gpu := c.checkAllocated(t, pod, "main", true, 1)[0]
			seen := simhost.Parse(c.logs(t, pod, "prepare")).SMI
			if len(seen) != 2 || !slices.Contains(seen, gpu.UUID) {
				t.Errorf("%s: the init container sees %q, want two with %s", s, seen, gpu.UUID)
			}
			c.delete(t, pod)
		}
	})
	t.Run("an init container of a greedy image", func(t *testing.T) {
		pod := newPod("init-greedy", run("main", plainImage, "true"))
		pod.Spec.InitContainers = []corev1.Container{run("prepare", greedyImage, c.probe()...)}
		c.finish(t, pod)
		c.compare(t, c.logs(t, pod, "prepare"), true, nil, nil)
	})
}

func TestSidecarsHaveGPUsOfTheirOwn(t *testing.T) {
	c := shared
	for _, s := range []strategy{{list: envvar}, {list: silent, devices: true}} {
		t.Run(s.String(), func(t *testing.T) {
			c.use(t, s)
			sidecar, idle := with(wait("sidecar", greedyImage), 1), wait("idle", greedyImage)
			sidecar.RestartPolicy = new(corev1.ContainerRestartPolicyAlways)
			idle.RestartPolicy = sidecar.RestartPolicy
			pod := newPod("sidecars", with(wait("main", greedyImage), 1))
			pod.Spec.InitContainers = []corev1.Container{sidecar, idle}
			c.startPod(t, pod)
			side := c.checkAllocated(t, pod, "sidecar", true, 1)
			main := c.checkAllocated(t, pod, "main", true, 1)
			if slices.Equal(side, main) {
				t.Errorf("both have GPU %d", main[0].Index)
			}
			c.check(t, pod, "idle", true)
		})
	}
}

func TestEphemeralContainersShareThePodsGPUs(t *testing.T) {
	c := shared
	pod := newPod("debugged", with(wait("main", plainImage), 1))
	c.startPod(t, pod)
	gpus := c.checkAllocated(t, pod, "main", true, 1)
	var other sim.GPU
	for _, gpu := range c.Driver.GPUs {
		if !slices.Contains(gpus, gpu) {
			other = gpu
		}
	}
	debug := func(name, visible string) {
		t.Helper()
		patch := fmt.Sprintf(`{"spec": {"ephemeralContainers": [{"name": %q, "image": %q, "imagePullPolicy": "Never", "targetContainerName": "main",
			"command": ["/bin/sh", "-c", %q], "env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": %q}]}]}}`, name, plainImage, "trap 'exit 0' TERM; sleep 86400 & wait", visible)
		if err := c.send("PATCH", podPath(pod)+"/ephemeralcontainers", "application/strategic-merge-patch+json", []byte(patch), nil); err != nil {
			t.Fatal(err)
		}
	}
	debug("shares", "all")
	c.awaitPod(t, pod, "the ephemeral container runs", func(now corev1.Pod) error {
		for _, s := range now.Status.EphemeralContainerStatuses {
			if s.Name == "shares" && s.State.Running != nil {
				return nil
			}
		}
		return errors.New("it does not run")
	})
	c.check(t, pod, "shares", true, gpus...)
	debug("steals", other.UUID)
	now := c.awaitPod(t, pod, "the second ephemeral container has ended", func(now corev1.Pod) error {
		for _, s := range now.Status.EphemeralContainerStatuses {
			if s.Name == "steals" && s.State.Terminated != nil {
				return nil
			}
		}
		return errors.New("it has not")
	})
	if got := message(t, now, "steals"); !strings.Contains(got, "is not this container's") {
		t.Errorf("the status says %q", got)
	}
}

func TestAContainerThatIsRestartedKeepsItsGPU(t *testing.T) {
	c := shared
	for _, s := range []strategy{{list: silent}, {list: volumeMounts}} {
		t.Run(s.String(), func(t *testing.T) {
			c.use(t, s)
			pod := newPod("restarted", with(wait("main", greedyImage), 1), with(wait("other", greedyImage), 1))
			pod.Spec.RestartPolicy = corev1.RestartPolicyAlways
			before := c.startPod(t, pod)
			gpus := c.checkAllocated(t, pod, "main", true, 1)
			if _, err := c.exec(pod.Namespace, pod.Name, "main", "/bin/kill", "1"); err != nil {
				t.Logf("the exec ended with the container: %v", err)
			}
			c.awaitPod(t, pod, "the container runs again", func(now corev1.Pod) error {
				if s := status(t, now, "main"); s.RestartCount == 0 || s.State.Running == nil || s.ContainerID == status(t, before, "main").ContainerID {
					return errors.New("it does not")
				}
				return nil
			})
			if again := c.checkAllocated(t, pod, "main", true, 1); !slices.Equal(gpus, again) {
				t.Errorf("GPU %d, was %d", again[0].Index, gpus[0].Index)
			}
			c.checkAllocated(t, pod, "other", true, 1)
		})
	}
}
