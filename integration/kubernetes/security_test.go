package kubernetes

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

func TestAUserOtherThanRootCanOpenItsGPU(t *testing.T) {
	c := shared
	for _, s := range []strategy{{list: envvar}, {list: envvar, devices: true}} {
		t.Run(s.String(), func(t *testing.T) {
			c.use(t, s)
			pod := newPod("non-root", secured(with(wait("main", plainImage), 1), corev1.SecurityContext{
				RunAsNonRoot: new(true), RunAsUser: new(int64(1000)), AllowPrivilegeEscalation: new(false),
				Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
			}))
			c.startPod(t, pod)
			c.checkAllocated(t, pod, "main", false, 1)
			if got, err := c.exec(pod.Namespace, pod.Name, "main", "/bin/id", "-u"); err != nil || got != "1000\n" {
				t.Errorf("uid %q, %v", got, err)
			}
		})
	}
}

func TestAPrivilegedPodSelectsByEnvironment(t *testing.T) {
	c := shared
	privileged := corev1.SecurityContext{Privileged: new(true)}
	pod := newPod("privileged",
		secured(wait("all", greedyImage), privileged), secured(env(wait("one", plainImage), "NVIDIA_VISIBLE_DEVICES", "2"), privileged),
		secured(wait("none", plainImage), privileged), secured(with(wait("own", plainImage), 1), privileged))
	now := c.startPod(t, pod)
	c.check(t, pod, "all", false, c.Driver.GPUs...)
	c.check(t, pod, "one", false, c.Driver.GPUs[2])
	c.check(t, pod, "none", false)
	c.checkAllocated(t, pod, "own", false, 1)
	if plan, _ := c.record(t, id(t, now, "all")); plan.Grant != "the container is privileged" {
		t.Errorf("grant %q", plan.Grant)
	}
}

// CAP_SYS_ADMIN is what NVIDIA's stack takes for privileged.
func TestACapabilityIsNoPrivilege(t *testing.T) {
	c := shared
	pod := newPod("admin", secured(wait("main", greedyImage), corev1.SecurityContext{
		Capabilities: &corev1.Capabilities{Add: []corev1.Capability{"SYS_ADMIN"}},
	}))
	c.startPod(t, pod)
	c.check(t, pod, "main", true)
}

// inUserNamespace makes a pod one with hostUsers: false, which excludes the node's
// network.
func inUserNamespace(pod *corev1.Pod) *corev1.Pod {
	pod.Spec.HostUsers, pod.Spec.HostNetwork = new(false), false
	return pod
}

func TestAPodInAUserNamespaceGetsExactlyItsGPU(t *testing.T) {
	c := shared
	for _, s := range []strategy{{list: envvar}, {list: volumeMounts}} {
		t.Run(s.String(), func(t *testing.T) {
			c.use(t, s)
			pod := inUserNamespace(newPod("userns", with(wait("main", greedyImage), 1), wait("none", greedyImage)))
			c.startPod(t, pod)
			c.checkAllocated(t, pod, "main", false, 1)
			c.check(t, pod, "none", false)
			got, err := c.exec(pod.Namespace, pod.Name, "main", "/bin/cat", "/proc/self/uid_map")
			if fields := strings.Fields(got); err != nil || len(fields) != 3 || fields[0] != "0" || fields[1] == "0" {
				t.Errorf("uid_map %q, %v", got, err)
			}
			// The mask is there: only the pod's GPU, and no file that could be written.
			if got, err := c.exec(pod.Namespace, pod.Name, "main", "/bin/cat", "/proc/driver/nvidia/params"); err != nil || !strings.Contains(got, "ModifyDeviceFiles: 0") {
				t.Errorf("params %q, %v", got, err)
			}
		})
	}
}

// With an unmasked /proc, which a nested container needs, a pod is not privileged.
func TestAnUnmaskedProcInAUserNamespaceIsNoPrivilege(t *testing.T) {
	c := shared
	context := corev1.SecurityContext{ProcMount: new(corev1.UnmaskedProcMount), Capabilities: &corev1.Capabilities{Add: []corev1.Capability{"SYS_ADMIN"}}}
	pod := inUserNamespace(newPod("unmasked", secured(with(wait("main", greedyImage), 1), context), secured(wait("none", greedyImage), context)))
	c.startPod(t, pod)
	c.checkAllocated(t, pod, "main", false, 1)
	c.check(t, pod, "none", false)
}

// A pod's author can say that nothing is wanted of this runtime over what the device plugin sets.
// The nodes are there, and with them the mask: root of the container sees no other GPU and cannot
// write the driver's files.
func TestNodesOfTheDriverBringTheMaskWithoutARequest(t *testing.T) {
	c := shared
	c.use(t, strategy{list: silent, devices: true})
	for _, value := range []string{"void", ""} {
		pod := newPod("void", env(with(wait("main", plainImage), 1), "NVIDIA_VISIBLE_DEVICES", value))
		c.startPod(t, pod)
		gpu := c.gpus(t, c.allocated(t, pod, "main")...)[0]
		const script = "grep -h UUID /proc/driver/nvidia/gpus/*/information; cat /proc/driver/nvidia/params; echo x > /proc/driver/nvidia/params"
		got, _ := c.exec(pod.Namespace, pod.Name, "main", "/bin/sh", "-c", script)
		if strings.Count(got, "GPU-") != 1 || !strings.Contains(got, gpu.UUID) || !strings.Contains(got, "ModifyDeviceFiles: 0") || !strings.Contains(got, "ead-only") {
			t.Errorf("%q: %q, want %s alone, read-only", value, got, gpu.UUID)
		}
		c.delete(t, pod)
	}
}
