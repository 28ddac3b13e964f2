package kubernetes

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simdriver/sim"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testenv"
)

// limiting is set in the environment of the tests whose node can limit GPU memory.
const limiting = "NVIDIA_SHIM_TEST_LIMITS"

func init() {
	if os.Getenv(limiting) != "" {
		makeNode = startLimiting
	}
}

// startLimiting brings up a node with driver 615, whose containers are in cgroups of version 2. The
// kubelet makes the pods' cgroups in the host's own hierarchies.
func startLimiting(life *testenv.Lifetime) (*cluster, error) {
	c := &cluster{processes: map[string]*testenv.Command{}, driver: sim.Options{GPUs: 4, Version: "615.78.08"}, cgroup: 2}
	if err := c.bringUp(life, c.simulatedNode()...); err != nil {
		return c, err
	}
	return c, c.Driver.LimitMemory(sim.MemoryLimits{Backend: "dmem", File: "cgroup.type"}) // all have that file
}

// writeRunc writes a runc that sets no resources of processor and memory: a cgroup2 tree beside
// hierarchies of version 1 does not have these controllers.
func (c *cluster) writeRunc() (path string, err error) {
	path = filepath.Join(c.dir, "runc")
	return path, os.WriteFile(path, fmt.Appendf(nil, `#!/bin/sh
for arg; do
	[ "$last" != --bundle ] || sed -i -E 's/"(cpu|memory|unified)":\{[^}]*\},?//g; s/,\}/}/g' "$arg/config.json"
	last=$arg
done
exec %q "$@"
`, filepath.Join(testenv.ShimDir(), "tools", "runc")), 0o755)
}

// asking gives a pod annotations of the form that kai-gpu-fractioning reads, or this shim's, and the
// handler that passes them on.
func asking(pod *corev1.Pod, annotations ...string) *corev1.Pod {
	pod.Annotations = map[string]string{}
	for _, a := range annotations {
		name, value, _ := strings.Cut(a, "=")
		if !strings.Contains(name, "/") {
			container, what, own := strings.Cut(name, ".")
			name = "nvidia.com/container." + container + ".gpu-memory." + what
			if !own {
				name = "io.containerd.nvidia.gpu-memory-" + container
			}
		}
		pod.Annotations[name] = value
	}
	pod.Spec.RuntimeClassName = new(annotatedHandler)
	return pod
}

// limitsOf returns the limits of a container in MiB, "request limit", and how many cgroups above it
// have a sum of requests. Without an id these are all limits and sums.
func (c *cluster) limitsOf(t testing.TB, id string) (own []string, above int) {
	t.Helper()
	list, err := c.Driver.CgroupLimits()
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range list {
		switch {
		case l.Soft == 0 && l.Hard == 1<<64-1:
		case filepath.Base(l.Cgroup) == id:
			own = append(own, fmt.Sprintf("%d %d", l.Soft>>20, l.Hard>>20))
		default:
			above++
		}
	}
	return own, above
}

// wantLimit fails the test unless a container of a running pod has this limit on its GPU.
func (c *cluster) wantLimit(t testing.TB, pod *corev1.Pod, container, want string) {
	t.Helper()
	own, above := c.limitsOf(t, id(t, c.awaitRunning(t, pod), container))
	reserved := want != "" && !strings.HasPrefix(want, "0 ")
	if strings.Join(own, ", ") != want || (above > 0) != reserved {
		t.Errorf("%s/%s: limits %q, %d above; want %q", pod.Name, container, own, above, want)
	}
}

// nothingLimited waits until no cgroup has a limit or a sum, and no record is left.
func (c *cluster) nothingLimited(t testing.TB) {
	t.Helper()
	if err := c.await("the end of all limits", func() error {
		_, left := c.limitsOf(t, "")
		records, _ := filepath.Glob(filepath.Join(c.Driver.StateDir, "gpu-memory-*.json"))
		if left+len(records) > 0 {
			return fmt.Errorf("left are %d limits and %q", left, records)
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
}

// TestPodsWithLimitsOfGPUMemory starts itself again, beside the node of the other tests, in
// namespaces in which the addresses of a node are free.
func TestPodsWithLimitsOfGPUMemory(t *testing.T) {
	if os.Getenv(limiting) == "" {
		cmd := exec.Command("/proc/self/exe", "-test.v", "-test.run=^TestPodsWithLimitsOfGPUMemory$")
		cmd.Env = append(os.Environ(), limiting+"=1")
		cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGTERM}
		out, err := cmd.CombinedOutput()
		if t.Logf("%s", out); err != nil {
			t.Error(err)
		}
		return
	}
	for name, test := range map[string]func(*testing.T, *cluster){
		"who says it":         whoSaysALimit,
		"refused":             limitsThatAreRefused,
		"MIG":                 noLimitOfMIGDevices,
		"restarted container": aRestartedContainerIsLimited,
	} {
		t.Run(name, func(t *testing.T) {
			test(t, shared)
			for _, pod := range shared.podsOf(t) {
				shared.delete(t, &pod)
			}
			shared.nothingLimited(t)
		})
	}
}

// podsOf returns the pods that there are.
func (c *cluster) podsOf(t testing.TB) []corev1.Pod {
	t.Helper()
	var list corev1.PodList
	if err := c.do("GET", "/api/v1/namespaces/default/pods", nil, &list); err != nil {
		t.Fatal(err)
	}
	return list.Items
}

func whoSaysALimit(t *testing.T, c *cluster) {
	limit := func(c corev1.Container, mib string) corev1.Container { return env(c, "NVIDIA_GPU_MEMORY_LIMIT", mib) }
	privileged := secured(with(wait("main", plainImage), 1), corev1.SecurityContext{Privileged: new(true)})
	both := asking(newPod("both", with(wait("main", plainImage), 1), with(wait("side", plainImage), 1), wait("none", plainImage)), "main.limit=2Gi", "main.request=1000M", "side.limit=1Gi")
	c.startPod(t, both)
	c.wantLimit(t, both, "main", "954 2048")
	c.wantLimit(t, both, "side", "1024 1024")
	if own, _ := c.limitsOf(t, id(t, c.awaitRunning(t, both), "none")); len(own) > 0 {
		t.Errorf("the container without a GPU has %q", own)
	}
	c.delete(t, both)
	for _, tc := range []struct {
		what string
		pod  *corev1.Pod
		want string
	}{
		{"this shim's annotation", asking(newPod("own", with(wait("main", plainImage), 1)), "limit=3Gi"), "3072 3072"},
		{"it goes before the other", asking(newPod("first", with(wait("main", plainImage), 1)), "limit=3Gi", "main.limit=2Gi"), "3072 3072"},
		{"a variable lowers it", asking(newPod("lower", limit(with(wait("main", greedyImage), 1), "1024")), "main.limit=2Gi"), "1024 1024"},
		{"a variable does not raise it", asking(newPod("raise", limit(with(wait("main", greedyImage), 1), "4096")), "main.limit=2Gi"), "2048 2048"},
		{"a variable alone", asking(newPod("alone", limit(with(wait("main", greedyImage), 1), "1024"))), "0 1024"},
		{"another container's annotation", asking(newPod("other", with(wait("main", plainImage), 1)), "side.limit=2Gi"), ""},
		{"with the host's cgroup namespace", asking(newPod("privileged", privileged), "main.limit=2Gi"), "2048 2048"},
	} {
		t.Run(tc.what, func(t *testing.T) {
			c.startPod(t, tc.pod)
			c.wantLimit(t, tc.pod, "main", tc.want)
			c.delete(t, tc.pod)
			c.nothingLimited(t)
		})
	}
	t.Run("the ceiling of one that asks for nothing", func(t *testing.T) {
		c.policy(t, `max-memory-limit = "2Gi"`)
		pod := asking(newPod("ceiling", with(wait("main", plainImage), 1)))
		c.startPod(t, pod)
		c.wantLimit(t, pod, "main", "0 2048")
	})
}

func limitsThatAreRefused(t *testing.T, c *cluster) {
	one := func(annotations ...string) *corev1.Pod {
		return asking(newPod("refused", with(wait("main", plainImage), 1)), annotations...)
	}
	c.refused(t, one("main.limit=9999Gi"), "main", "limits GPU memory", "ask for at most the GPU's memory")
	c.refused(t, one("main.limit=-8Gi"), "main", "not an amount of memory")
	c.refused(t, one("main.limit=1=1Gi"), "main", "is not one of the container's 1 GPUs")
	c.policy(t, `max-memory-limit = "2Gi"`)
	c.refused(t, one("main.limit=4Gi"), "main", "more than the 2048 MiB of policy.max-memory-limit")
}

func noLimitOfMIGDevices(t *testing.T, c *cluster) {
	const resource = "nvidia.com/mig-1g.18gb"
	c.mig(t, resource, []sim.MIGDevice{{GPU: 1, GI: 9, CI: 0}}).use(strategy{list: envvar})
	pod := asking(newPod("mig", limited(wait("main", plainImage), resource, 1)), "main.limit=1Gi")
	c.refused(t, pod, "main", "has MIG devices, which the driver cannot limit")
	c.delete(t, pod)
}

// The kubelet makes a new container of the same name.
func aRestartedContainerIsLimited(t *testing.T, c *cluster) {
	pod := asking(newPod("restarted", with(wait("main", plainImage), 1)), "main.limit=2Gi")
	pod.Spec.RestartPolicy = corev1.RestartPolicyAlways
	first := id(t, c.startPod(t, pod), "main")
	c.wantLimit(t, pod, "main", "2048 2048")
	c.mustExec(t, pod, "main", "/bin/sh", "-c", "kill 1")
	c.awaitPod(t, pod, "the container is restarted", func(now corev1.Pod) error {
		if s := status(t, now, "main"); s.State.Running == nil || s.RestartCount == 0 {
			return errors.New("not yet")
		}
		return nil
	})
	c.wantLimit(t, pod, "main", "2048 2048")
	if own, _ := c.limitsOf(t, first); len(own) > 0 {
		t.Errorf("the first one still has %q", own)
	}
}

// The driver of the other tests' node is older.
func TestNoPodIsLimitedByAnOlderDriver(t *testing.T) {
	pod := asking(newPod("older", with(wait("main", plainImage), 1)), "main.limit=2Gi")
	shared.refused(t, pod, "main", "which driver "+shared.Driver.KernelVersion+" cannot: use driver 615 or newer")
}
