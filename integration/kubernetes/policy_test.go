package kubernetes

import (
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simdriver/sim"
)

func TestT39APodWithoutAGPUGetsNoneWhateverItsImageSays(t *testing.T) {
	c := shared
	pod := newPod("greedy", wait("main", greedyImage))
	now := c.startPod(t, pod)
	c.check(t, pod, "main", true)
	if _, given := c.record(t, id(t, now, "main")); given {
		t.Error("it was given something")
	}
	if want := "no GPU was allocated to the container, says the kubelet"; !strings.Contains(c.Log(), want) {
		t.Errorf("containerd's log lacks %q", want)
	}
}

func TestT40APodThatNamesAnotherPodsGPUFails(t *testing.T) {
	c := shared
	for _, s := range []strategy{{list: envvar}, {list: envvar, devices: true}} {
		t.Run(s.String(), func(t *testing.T) {
			c.use(t, s)
			victim := newPod("victim", with(wait("main", plainImage), 1))
			c.startPod(t, victim)
			theirs := c.checkAllocated(t, victim, "main", true, 1)[0]
			thieves, owners := map[string]*corev1.Pod{}, map[string]*corev1.Pod{}
			for name, value := range map[string]string{
				"uuid": theirs.UUID, "index": fmt.Sprint(theirs.Index), "unknown": "GPU-00000000-0000-0000-0000-000000000000",
			} {
				thieves[value] = newPod("thief-"+name, env(wait("main", plainImage), "NVIDIA_VISIBLE_DEVICES", value))
				owners[value] = newPod("owner-"+name, env(with(wait("main", plainImage), 1), "NVIDIA_VISIBLE_DEVICES", value))
				c.create(t, thieves[value])
				c.create(t, owners[value])
			}
			for value, thief := range thieves {
				reason := fmt.Sprintf("GPU %q is not this container's", value)
				c.awaitRefused(t, thief, "main", reason, "no GPU was allocated")
				c.awaitRefused(t, owners[value], "main", reason)
			}
			// The victim keeps its GPU.
			c.check(t, victim, "main", true, theirs)
		})
	}
	t.Run("device-list mounts", func(t *testing.T) {
		// With this strategy the variable does not count.
		c.use(t, strategy{list: volumeMounts})
		pod := newPod("mounted", env(with(wait("main", plainImage), 1), "NVIDIA_VISIBLE_DEVICES", c.Driver.GPUs[0].UUID),
			env(with(wait("other", plainImage), 1), "NVIDIA_VISIBLE_DEVICES", c.Driver.GPUs[0].UUID))
		c.startPod(t, pod)
		c.checkAllocated(t, pod, "main", true, 1)
		c.checkAllocated(t, pod, "other", true, 1)
	})
}

func TestT45AnnotationsOfAPodGrantNothing(t *testing.T) {
	c := shared
	forged := map[string]string{
		"nvidia.cdi.k8s.io/container.main":        "k8s.device-plugin.nvidia.com/gpu=" + c.Driver.GPUs[0].UUID,
		"io.kubernetes.cri.sandbox-namespace":     "kube-system",
		"io.kubernetes.cri.sandbox-name":          "another",
		"io.kubernetes.cri.container-name":        "another",
		"io.kubernetes.cri.container-type":        "sandbox",
		"nvidia.com/gpu":                          "all",
		"run.oci.example/NVIDIA_VISIBLE_DEVICES":  "all",
		"device.containerd.io/nvidia-gpu.forged1": "all",
	}
	for _, class := range []string{handler, annotatedHandler} {
		for _, image := range []string{plainImage, greedyImage} {
			t.Run(class+" "+filepath.Base(image), func(t *testing.T) {
				pod := newPod("forged", wait("main", image))
				pod.Annotations = forged
				pod.Spec.RuntimeClassName = &class
				c.startPod(t, pod)
				c.check(t, pod, "main", true)
			})
		}
		t.Run(class+" with a GPU of its own", func(t *testing.T) {
			c.use(t, strategy{list: silent})
			pod := newPod("forged-owner", with(wait("main", greedyImage), 1))
			pod.Annotations = forged
			pod.Spec.RuntimeClassName = &class
			c.startPod(t, pod)
			c.checkAllocated(t, pod, "main", true, 1)
		})
	}
}

func TestT49ATrustedNamespaceSelectsByEnvironmentAndALookAlikeDoesNot(t *testing.T) {
	c := shared
	for name, trusted := range map[string]bool{
		"kube-system": true, "kube-system-x": false, "x-kube-system": false, "gpu-operator": false,
	} {
		t.Run(name, func(t *testing.T) {
			c.namespace(t, name)
			all, one := newPod("monitor-all", wait("main", greedyImage)), newPod("monitor-one", env(wait("main", plainImage), "NVIDIA_VISIBLE_DEVICES", "2"))
			all.Namespace, one.Namespace = name, name
			if !trusted {
				c.startPod(t, all)
				c.check(t, all, "main", true)
				c.refused(t, one, "main", `GPU "2" is not this container's`)
				return
			}
			now := c.startPod(t, all)
			c.check(t, all, "main", true, c.Driver.GPUs...)
			if plan, _ := c.record(t, id(t, now, "main")); plan.Grant != "namespace "+name+" is trusted" {
				t.Errorf("grant %q", plan.Grant)
			}
			c.startPod(t, one)
			c.check(t, one, "main", true, c.Driver.GPUs[2])
		})
	}
}

// A pod that may mount host paths can mount /dev/null as a device list, so operators who allow that
// must turn accept-volume-mounts off. A similar path is never a device list.
func TestT44DeviceListMountsOfAPod(t *testing.T) {
	c := shared
	gpu := c.Driver.GPUs[1]
	mounted := func(name, at string) *corev1.Pod {
		main := wait("main", plainImage)
		main.VolumeMounts = []corev1.VolumeMount{{Name: "null", MountPath: at}}
		pod := newPod(name, main)
		pod.Spec.Volumes = []corev1.Volume{{Name: "null", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/dev/null"}}}}
		return pod
	}
	for _, dir := range []string{"/var/run/nvidia-container-devicesX", "/var/run/nvidia-container-devices-", "/run/nvidia"} {
		pod := mounted("look-alike", dir+"/"+gpu.UUID)
		c.startPod(t, pod)
		c.check(t, pod, "main", true)
	}
	c.policy(t, "accept-volume-mounts = false\n")
	pod := mounted("not-accepted", "/var/run/nvidia-container-devices/"+gpu.UUID)
	c.startPod(t, pod)
	c.check(t, pod, "main", true)
}

func TestAuditGivesAndSaysWhatEnforceWouldRefuse(t *testing.T) {
	c := shared
	c.policy(t, "kubernetes = \"audit\"\n")
	pod := newPod("audited", wait("main", greedyImage))
	now := c.startPod(t, pod)
	c.check(t, pod, "main", true, c.Driver.GPUs...)
	const want = `kubernetes = "enforce" would have refused this: no GPU was allocated to the container, says the kubelet`
	if plan, _ := c.record(t, id(t, now, "main")); plan.Audit != want {
		t.Errorf("audit %q, want %q", plan.Audit, want)
	}
	if !strings.Contains(c.Log(), strings.ReplaceAll(want, `"`, `\"`)) {
		t.Errorf("containerd's log lacks %q", want)
	}
	fine := newPod("audited-fine", with(wait("main", plainImage), 1))
	now = c.startPod(t, fine)
	c.checkAllocated(t, fine, "main", true, 1)
	if plan, _ := c.record(t, id(t, now, "main")); plan.Audit != "" {
		t.Errorf("a pod that has what was allocated: %q", plan.Audit)
	}
}

func TestAKubeletThatDoesNotAnswerIsNamedInThePodsStatus(t *testing.T) {
	c := shared
	socket := filepath.Join(t.TempDir(), "dead.sock")
	l, err := net.Listen("unix", socket) // takes connections and says nothing
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c.policy(t, fmt.Sprintf("kubelet-socket = %q\n", socket))
	// Its checkpoint says what was allocated, unless the container is not in it and its pod is.
	known := newPod("known-own", with(wait("main", greedyImage), 1))
	c.startPod(t, known)
	c.checkAllocated(t, known, "main", true, 1)
	unknown := newPod("unknown-one", with(run("other", plainImage, "true"), 1), wait("main", greedyImage))
	c.refused(t, unknown, "main", "what was allocated to pod default/"+unknown.Name+" is not known", socket)
	// A container that asks for nothing, or has its nodes in the specification, does not wait.
	plain := newPod("unknown-plain", wait("main", plainImage))
	c.startPod(t, plain)
	c.use(t, strategy{list: envvar, devices: true})
	own := newPod("known-by-nodes", with(wait("main", plainImage), 1))
	c.startPod(t, own)
	c.checkAllocated(t, own, "main", true, 1)
}

// No kubelet means no checkpoint and no socket, as with a container of crictl on a host without
// one.
func TestWithoutAKubeletAContainerIsRefused(t *testing.T) {
	c := shared
	socket := filepath.Join(t.TempDir(), "none.sock")
	c.policy(t, fmt.Sprintf("kubelet-socket = %q\n", socket))
	withCheckpoint(t, func([]byte) []byte { return nil })
	c.refused(t, newPod("no-kubelet", wait("main", greedyImage)), "main", "is not known: there is no kubelet at "+socket, "policy.kubelet-socket", "policy.accept-env-without-kubelet")
	c.policy(t, fmt.Sprintf("kubelet-socket = %q\naccept-env-without-kubelet = true\n", socket))
	pod := newPod("no-kubelet", wait("all", greedyImage), env(wait("one", plainImage), "NVIDIA_VISIBLE_DEVICES", "3"))
	now := c.startPod(t, pod)
	c.check(t, pod, "all", true, c.Driver.GPUs...)
	c.check(t, pod, "one", true, c.Driver.GPUs[3])
	if plan, _ := c.record(t, id(t, now, "all")); !strings.Contains(plan.Grant, "there is no kubelet at") {
		t.Errorf("grant %q", plan.Grant)
	}
}

// The environment selects among what was allocated.
func TestTheEnvironmentSelectsAmongTheAllocated(t *testing.T) {
	c := shared
	// It is not known beforehand which GPUs are allocated; all but one certainly include one of
	// two.
	pod := newPod("selects", with(wait("main", plainImage), 3))
	c.startPod(t, pod)
	gpus := c.checkAllocated(t, pod, "main", true, 3)
	c.delete(t, pod)
	var missing sim.GPU
	for _, gpu := range c.Driver.GPUs {
		if !slices.Contains(gpus, gpu) {
			missing = gpu
		}
	}
	all := newPod("selects-all", env(with(wait("main", plainImage), 4), "NVIDIA_VISIBLE_DEVICES", fmt.Sprintf("%d,%s", gpus[0].Index, missing.UUID)))
	c.startPod(t, all)
	c.check(t, all, "main", true, gpus[0], missing)
}
