package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/dynamic-resource-allocation/resourceslice"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simdriver/sim"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testenv"
)

const (
	// draDriver is the name of the driver and of its DeviceClass, and nvidiasDRADriver of NVIDIA's.
	draDriver        = "gpu.simulated.test"
	nvidiasDRADriver = "gpu.nvidia.com"
	resources        = "/apis/resource.k8s.io/v1/"
)

// dra is a driver for dynamic resource allocation: it publishes the GPUs and prepares claims with
// the CDI devices of the specification that nvidia-shimctl writes.
type dra struct {
	t    *testing.T
	gpus []sim.GPU
}

// startDRA runs the driver for the rest of the test.
func (c *cluster) startDRA(t *testing.T) {
	t.Helper()
	file := filepath.Join(cdiDir, "nvidia.yaml")
	cmd := exec.Command(filepath.Join(testenv.ShimDir(), "nvidia-shimctl"), "--config", c.Driver.ConfigPath, "cdi", "--output", file)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("nvidia-shimctl cdi: %v: %s", err, out)
	}
	t.Cleanup(func() { os.Remove(file) })
	client, err := kubernetes.NewForConfig(&rest.Config{Host: c.base, BearerToken: c.token, TLSClientConfig: rest.TLSClientConfig{Insecure: true}})
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(c.kubeletRoot(), "plugins", draDriver)
	if err := os.MkdirAll(dir, 0o750); err != nil {
		t.Fatal(err)
	}
	d := &dra{t, c.Driver.GPUs}
	helper, err := kubeletplugin.Start(context.Background(), d, kubeletplugin.DriverName(draDriver), kubeletplugin.NodeName(nodeName), kubeletplugin.KubeClient(client),
		kubeletplugin.PluginDataDirectoryPath(dir), kubeletplugin.RegistrarDirectoryPath(filepath.Join(c.kubeletRoot(), "plugins_registry")))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(helper.Stop)
	slice := resourceslice.Slice{}
	for i := range c.Driver.GPUs {
		slice.Devices = append(slice.Devices, resourcev1.Device{Name: fmt.Sprintf("gpu-%d", i)})
	}
	pool := resourceslice.Pool{Slices: []resourceslice.Slice{slice}}
	if err := helper.PublishResources(t.Context(), resourceslice.DriverResources{Pools: map[string]resourceslice.Pool{nodeName: pool}}); err != nil {
		t.Fatal(err)
	}
	c.deviceClass(t, draDriver)
}

// deviceClass makes the DeviceClass of a driver's devices, with the driver's name.
func (c *cluster) deviceClass(t *testing.T, driver string) {
	t.Helper()
	class := fmt.Sprintf("{apiVersion: resource.k8s.io/v1, kind: DeviceClass, metadata: {name: %s}, spec: {selectors: [{cel: {expression: device.driver == '%[1]s'}}]}}", driver)
	if err := c.send("POST", resources+"deviceclasses", "application/yaml", []byte(class), nil); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.do("DELETE", resources+"deviceclasses/"+driver, nil, nil); err != nil {
			t.Error(err)
		}
	})
}

func (d *dra) PrepareResourceClaims(_ context.Context, claims []*resourcev1.ResourceClaim) (map[types.UID]kubeletplugin.PrepareResult, error) {
	prepared := map[types.UID]kubeletplugin.PrepareResult{}
	for _, claim := range claims {
		var r kubeletplugin.PrepareResult
		for i, gpu := range claimed(claim, d.gpus) {
			device := claim.Status.Allocation.Devices.Results[i]
			r.Devices = append(r.Devices, kubeletplugin.Device{
				Requests: []string{device.Request}, PoolName: device.Pool, DeviceName: device.Device, CDIDeviceIDs: []string{"nvidia.com/gpu=" + gpu.UUID},
			})
		}
		prepared[claim.UID] = r
	}
	return prepared, nil
}

func (d *dra) UnprepareResourceClaims(_ context.Context, claims []kubeletplugin.NamespacedObject) (map[types.UID]error, error) {
	done := map[types.UID]error{}
	for _, claim := range claims {
		done[claim.UID] = nil
	}
	return done, nil
}

func (d *dra) HandleError(_ context.Context, err error, what string) {
	if !errors.Is(err, kubeletplugin.ErrRecoverable) {
		d.t.Errorf("%s: %v", what, err)
	}
}

// claimed are the GPUs that were allocated to a claim.
func claimed(claim *resourcev1.ResourceClaim, gpus []sim.GPU) (of []sim.GPU) {
	for _, device := range claim.Status.Allocation.Devices.Results {
		of = append(of, gpus[slices.IndexFunc(gpus, func(g sim.GPU) bool {
			number := g.Index
			if device.Driver == nvidiasDRADriver {
				number = g.Minor
			}
			return device.Device == fmt.Sprintf("gpu-%d", number)
		})])
	}
	return of
}

// claim makes a ResourceClaim for GPUs of a driver. The controller manager, which would make it from a template
// and delete it after its pod, is not running.
func (c *cluster) claim(t *testing.T, driver, name string, count int) {
	t.Helper()
	path := resources + "namespaces/default/resourceclaims"
	claim := fmt.Sprintf("{apiVersion: resource.k8s.io/v1, kind: ResourceClaim, metadata: {name: %s}, spec: {devices: {requests: [{name: gpus, exactly: {deviceClassName: %s, count: %d}}]}}}", name, driver, count)
	if err := c.send("POST", path, "application/yaml", []byte(claim), nil); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		released := []byte(`{"metadata": {"finalizers": null}}`)
		if err := errors.Join(c.send("PATCH", path+"/"+name, "application/merge-patch+json", released, nil), c.do("DELETE", path+"/"+name, nil, nil)); err != nil {
			t.Error(err)
		}
	})
}

// claiming makes a pod whose containers named "claims…" have the GPUs of a claim.
func claiming(claim string, containers ...corev1.Container) *corev1.Pod {
	pod := newPod("dra", containers...)
	pod.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpus", ResourceClaimName: &claim}}
	for i := range pod.Spec.Containers {
		if strings.HasPrefix(pod.Spec.Containers[i].Name, "claims") {
			pod.Spec.Containers[i].Resources.Claims = []corev1.ResourceClaim{{Name: "gpus"}}
		}
	}
	return pod
}

// checkClaimed finds in each container of a running pod exactly the GPUs of its claim, and returns
// these.
func (c *cluster) checkClaimed(t *testing.T, pod *corev1.Pod) []sim.GPU {
	t.Helper()
	var claim resourcev1.ResourceClaim
	if err := c.do("GET", resources+"namespaces/default/resourceclaims/"+*pod.Spec.ResourceClaims[0].ResourceClaimName, nil, &claim); err != nil {
		t.Fatal(err)
	}
	now, gpus := c.awaitRunning(t, pod), claimed(&claim, c.Driver.GPUs)
	for _, container := range pod.Spec.Containers {
		r, given := c.record(t, id(t, now, container.Name))
		if config, err := os.ReadFile(filepath.Join(c.bundle(id(t, now, container.Name)), "config.json")); err != nil || strings.Contains(string(config), "nvidia-cdi-hook") {
			t.Errorf("%s/%s has hooks: %v: %s", pod.Name, container.Name, err, config)
		}
		if len(container.Resources.Claims) == 0 {
			c.check(t, pod, container.Name, true)
			continue
		}
		c.check(t, pod, container.Name, true, gpus...)
		if !given || !strings.HasPrefix(r.Grant, "taken over from CDI: GPU-") || !r.Proc.Masked {
			t.Errorf("%s/%s: record %v: %+v", pod.Name, container.Name, given, r)
		}
	}
	return gpus
}

// executions returns the programs that a shim and its children execute while do runs.
func executions(t *testing.T, shim int, do func()) (programs []string) {
	t.Helper()
	log := filepath.Join(t.TempDir(), "trace")
	strace := exec.Command("strace", "-f", "-e", "trace=execve,execveat", "-e", "signal=none", "-o", log, "-p", strconv.Itoa(shim))
	if err := strace.Start(); err != nil {
		t.Fatal("strace cannot be started: install Debian's strace (integration/tools/apt.sh): ", err)
	}
	stop := sync.OnceFunc(func() {
		_ = strace.Process.Signal(os.Interrupt)
		_ = strace.Wait()
	})
	defer stop()
	if !testenv.Until(func() bool {
		tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", shim))
		return len(tasks) > 0 && !slices.ContainsFunc(tasks, func(name string) bool {
			status, err := os.ReadFile(name)
			return err == nil && strings.Contains(string(status), "TracerPid:\t0\n")
		})
	}) {
		t.Fatal("strace does not trace the shim")
	}
	do()
	stop()
	trace, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range regexp.MustCompile(`execve(?:at)?\((?:\d+, )?"([^"]*)"`).FindAllStringSubmatch(string(trace), -1) {
		programs = append(programs, m[1])
	}
	return programs
}

// checkExecutions restarts the container "claims" of a pod; its shim must execute only runc.
func (c *cluster) checkExecutions(t *testing.T, pod *corev1.Pod) {
	t.Helper()
	runc, count := filepath.Join(c.Options.ToolsDir, "runc"), 0
	for _, program := range executions(t, c.ShimPIDs(c.sandbox(t, pod))[0], func() {
		if _, err := c.exec(pod.Namespace, pod.Name, "claims", "/bin/kill", "1"); err != nil {
			t.Logf("the exec ended with the container: %v", err)
		}
		c.awaitPod(t, pod, "the container runs again", func(now corev1.Pod) error {
			if s := status(t, now, "claims"); s.RestartCount == 0 || s.State.Running == nil {
				return errors.New("it does not")
			}
			return nil
		})
	}) {
		switch {
		case program == runc:
			count++
		case program == "", strings.HasPrefix(program, "/proc/self/"), strings.HasPrefix(program, "/proc/thread-self/"): // runc init
		case program == "/bin/kill", program == "/bin/sh", filepath.Base(program) == "sleep": // the container's
		default:
			t.Errorf("executed: %s", program)
		}
	}
	if count < 3 { // exec, create, start
		t.Errorf("runc was executed %d times", count)
	}
}

// claims makes the claims "one" and "two" for GPUs of a driver.
func (c *cluster) claims(t *testing.T, driver string) {
	t.Helper()
	c.claim(t, driver, "one", 1)
	c.claim(t, driver, "two", 2)
	t.Cleanup(func() {
		// The kubelet releases a pod when the driver has unprepared its claim.
		if err := c.drain(); err != nil {
			t.Error(err)
		}
	})
}

func TestDynamicResourceAllocation(t *testing.T) {
	c := shared
	c.startDRA(t)
	c.claims(t, draDriver)
	other := env(wait("claims-other", plainImage), "NVIDIA_VISIBLE_DEVICES", c.Driver.GPUs[0].UUID+","+c.Driver.GPUs[1].UUID)
	one := claiming("one", wait("claims", greedyImage), other, wait("none", greedyImage))
	one.Spec.RestartPolicy = corev1.RestartPolicyAlways
	two := claiming("two", wait("claims", greedyImage))
	for _, pod := range []*corev1.Pod{one, two} {
		c.startPod(t, pod)
	}
	given := append(c.checkClaimed(t, one), c.checkClaimed(t, two)...)
	if len(given) != 3 || slices.Contains(given[1:], given[0]) {
		t.Fatalf("GPUs of the claims: %v", given)
	}
	c.checkExecutions(t, one)
	c.checkClaimed(t, one)
	thief := newPod("dra-thief", env(wait("main", plainImage), "NVIDIA_VISIBLE_DEVICES", given[0].UUID))
	c.refused(t, thief, "main", "is not this container's")
	// The new kubelet has one claim in use, and has the other prepared again.
	c.delete(t, two)
	c.restartKubelet(t)
	c.checkClaimed(t, one)
	for _, claim := range []string{"one", "two"} {
		pod := claiming(claim, wait("claims", greedyImage))
		c.startPod(t, pod)
		given = append(given, c.checkClaimed(t, pod)...)
	}
	if !slices.Equal(given[:3], given[3:]) {
		t.Errorf("GPUs of the claims, before the restart and after: %v", given)
	}
}

func (d *dra) WatchHealthStatus(context.Context, chan<- kubeletplugin.DeviceHealthReport) error {
	return kubeletplugin.ErrHealthNotSupported
}

// NVIDIA's driver writes a CDI file for each claim, whose hooks are not run.
func TestNVIDIAsDRADriver(t *testing.T) {
	c, dir := shared, t.TempDir()
	plugins := filepath.Join(c.kubeletRoot(), "plugins")
	t.Cleanup(func() { _ = os.RemoveAll(filepath.Join(plugins, nvidiasDRADriver)) })
	bindNodes(t)
	startNVIDIAs(t, &testenv.Command{
		Name: "gpu-kubelet-plugin", Dir: dir, Log: filepath.Join(dir, "log"), Env: nvidiaEnv(t),
		Argv: []string{
			filepath.Join(binDir(), "gpu-kubelet-plugin"), "--node-name=" + nodeName, "--image-name=none", "--kubeconfig=" + c.kubeconfig(), "-v=6",
			"--cdi-root=" + cdiDir, "--kubelet-plugins-directory-path=" + plugins, "--kubelet-registrar-directory-path=" + filepath.Join(c.kubeletRoot(), "plugins_registry"),
		},
	}, "Current kubelet plugin registration status")
	c.deviceClass(t, nvidiasDRADriver)
	c.claims(t, nvidiasDRADriver)
	one := claiming("one", wait("claims", greedyImage), wait("none", greedyImage))
	two := claiming("two", wait("claims", greedyImage), wait("claims-too", plainImage))
	for _, pod := range []*corev1.Pod{one, two} {
		c.startPod(t, pod)
	}
	given := append(c.checkClaimed(t, one), c.checkClaimed(t, two)...)
	if len(given) != 3 || slices.Contains(given[1:], given[0]) {
		t.Fatalf("GPUs of the claims: %v", given)
	}
	thief := newPod("dra-thief", env(wait("main", plainImage), "NVIDIA_VISIBLE_DEVICES", given[0].UUID))
	c.refused(t, thief, "main", "is not this container's")
}
