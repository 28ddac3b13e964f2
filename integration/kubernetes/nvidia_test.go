package kubernetes

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/record"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testenv"
)

// nvidia replaces the test's device plugin by NVIDIA's, on the simulated NVML, for the rest of the
// test, and returns when the node offers count devices of the resource. config is its configuration
// file.
func nvidia(t *testing.T, resource string, count int, config string, args ...string) {
	t.Helper()
	c, dir := shared, t.TempDir()
	file := filepath.Join(dir, "config.yaml")
	if err := os.WriteFile(file, []byte("version: v1\n"+config), 0o600); err != nil {
		t.Fatal(err)
	}
	p := &testenv.Command{
		Name: "nvidia-device-plugin",
		Argv: append([]string{
			filepath.Join(binDir(), "nvidia-device-plugin"), "--config-file=" + file, "--device-discovery-strategy=nvml",
			"--nvidia-dev-root=" + c.Driver.DevRoot, "--gdrcopy-enabled=false", "--gds-enabled=false", "--mofed-enabled=false",
		}, args...),
		Dir: dir, Log: filepath.Join(dir, "log"),
		// The simulated NVML has no events.
		Env: append(nvidiaEnv(t), "DP_DISABLE_HEALTHCHECKS=all"),
	}
	bindNodes(t)
	if err := c.stopPlugin(c.Plugin); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		// It does not remove its specification.
		_ = os.Remove(filepath.Join(cdiDir, "k8s.device-plugin.nvidia.com-gpu.json"))
		if err := errors.Join(c.awaitOffer(resource, 0), c.servePlugin(c.Plugin)); err != nil {
			t.Error(err)
		}
	})
	startNVIDIAs(t, p, "Registered device plugin for")
	if err := c.awaitOffer(resource, count); err != nil {
		t.Fatal(err)
	}
}

// bindNodes puts the driver's nodes below its root for the rest of the test: NVIDIA's programs look
// there if they are in no container of their own.
func bindNodes(t *testing.T) {
	t.Helper()
	d := shared.Driver
	dev := filepath.Join(d.Root, "dev")
	if err := os.MkdirAll(dev, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount(filepath.Join(d.DevRoot, "dev"), dev, "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(unix.Unmount(dev, unix.MNT_DETACH), os.Remove(dev)); err != nil {
			t.Error(err)
		}
	})
}

// nvidiaEnv is the environment of NVIDIA's programs: they find the simulated driver, and a hook that
// fails the test if it is run.
func nvidiaEnv(t *testing.T) []string {
	t.Helper()
	d := shared.Driver
	return []string{
		"NVIDIA_DRIVER_ROOT=" + d.Root, "DRIVER_ROOT_CTR_PATH=" + d.Root, "NVIDIA_CDI_HOOK_PATH=" + cdiHook(t),
		"PATH=/usr/bin:/bin", "LD_LIBRARY_PATH=" + filepath.Join(d.Root, d.Layout.LibDir()), "NVIDIA_SIM_DEV=" + filepath.Join(d.DevRoot, "dev"),
	}
}

// startNVIDIAs runs a program of NVIDIA's for the rest of the test, and waits for a line in its log.
func startNVIDIAs(t *testing.T, p *testenv.Command, ready string) {
	t.Helper()
	c := shared
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	c.processes[p.Name] = p
	t.Cleanup(func() {
		delete(c.processes, p.Name)
		p.Stop()
		if t.Failed() {
			t.Log(p.Tail(8 << 10))
		}
	})
	if err := c.await(p.Name, func() error {
		if !strings.Contains(p.Tail(1<<20), ready) {
			return errors.New(p.Tail(4 << 10))
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

// cdiHook is a program for the hooks of NVIDIA's CDI specifications that notes
// that it was run: the test then fails.
func cdiHook(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	ran := filepath.Join(dir, "ran")
	name := filepath.Join(dir, "nvidia-cdi-hook")
	if err := os.WriteFile(name, []byte("#!/bin/sh\necho \"$@\" >>"+ran+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if data, err := os.ReadFile(ran); err == nil {
			t.Errorf("NVIDIA's hooks ran: %s", data)
		}
	})
	return name
}

// checkTakenOver checks the result for a specification that NVIDIA's CDI has edited.
func (c *cluster) checkTakenOver(t *testing.T, pod *corev1.Pod, plan record.Record) {
	t.Helper()
	if len(plan.RemovedHooks) == 0 {
		t.Errorf("%s: no hooks were removed", pod.Name)
	}
	// NVIDIA's mounts of single libraries at the host's places are gone.
	out := c.mustExec(t, pod, "main", "/bin/sh", "-c", "grep '\\.so\\."+c.Driver.Version+" ' /proc/mounts | grep -v ' /usr/local/nvidia/'; true")
	if out != "" {
		t.Errorf("%s: libraries mounted by their full names: %q", pod.Name, out)
	}
}

func TestNVIDIAsDevicePlugin(t *testing.T) {
	c := shared
	const (
		kubelet       = "allocated by the kubelet"
		specification = "in the container's specification"
		cdi           = "taken over from CDI: GPU-"
	)
	for _, tc := range []struct {
		args  []string
		grant string // where the grant comes from
	}{
		{[]string{"--device-list-strategy=envvar"}, kubelet},
		{[]string{"--device-list-strategy=envvar", "--device-id-strategy=index"}, kubelet},
		{[]string{"--device-list-strategy=envvar", "--pass-device-specs"}, specification},
		{[]string{"--device-list-strategy=volume-mounts"}, specification},
		{[]string{"--device-list-strategy=volume-mounts", "--pass-device-specs"}, specification},
		{[]string{"--device-list-strategy=cdi-annotations"}, cdi},
		{[]string{"--device-list-strategy=cdi-cri"}, cdi},
		{[]string{"--device-list-strategy=cdi-annotations,cdi-cri", "--device-id-strategy=index"}, cdi},
		{[]string{"--device-list-strategy=envvar,cdi-cri", "--pass-device-specs"}, cdi},
		{[]string{"--device-list-strategy=volume-mounts,cdi-annotations"}, cdi},
	} {
		t.Run(strings.ReplaceAll(strings.Join(tc.args, " "), "--", ""), func(t *testing.T) {
			nvidia(t, "nvidia.com/gpu", len(c.Driver.GPUs), "", tc.args...)
			one, two, none := newPod("nvidia-one", with(wait("main", plainImage), 1)), newPod("nvidia-two", with(wait("main", greedyImage), 2)), newPod("nvidia-none", wait("main", greedyImage))
			for _, pod := range []*corev1.Pod{one, two, none} {
				c.create(t, pod)
			}
			for count, pod := range []*corev1.Pod{none, one, two} {
				now := c.awaitRunning(t, pod)
				c.checkAllocated(t, pod, "main", true, count)
				plan, given := c.record(t, id(t, now, "main"))
				if given != (count > 0) || given && !strings.HasPrefix(plan.Grant, tc.grant) {
					t.Errorf("%s: record %v: grant %q, want %q", pod.Name, given, plan.Grant, tc.grant)
				}
				if tc.grant == cdi && count > 0 {
					c.checkTakenOver(t, pod, plan)
				}
			}
		})
	}
	t.Run("time-slicing", func(t *testing.T) {
		const config = "sharing:\n  timeSlicing:\n    renameByDefault: true\n    resources:\n    - {name: nvidia.com/gpu, replicas: 3}\n"
		nvidia(t, "nvidia.com/gpu.shared", 3*len(c.Driver.GPUs), config, "--device-list-strategy=envvar")
		var pods []*corev1.Pod
		for range len(c.Driver.GPUs) + 1 { // so that two share one
			pod := newPod("nvidia-slice", limited(wait("main", greedyImage), "nvidia.com/gpu.shared", 1))
			pods = append(pods, pod)
			c.create(t, pod)
		}
		for _, pod := range pods {
			c.awaitRunning(t, pod)
			c.checkAllocated(t, pod, "main", true, 1)
		}
	})
}

// HAMi's and Volcano's plugins: the container gets the GPU that the plugin answered, whatever its
// image asks for, and keeps what their library needs; the GPU that the id names is not its own.
func TestAPluginThatSharesGPUs(t *testing.T) {
	c := shared
	const resource = "volcano.sh/vgpu-number"
	var ids []string
	for i := range 3 {
		ids = append(ids, fmt.Sprintf("%s-%d", c.Driver.GPUs[1].UUID, i))
	}
	p := newPlugin(c.Driver, resource, ids)
	p.use(strategy{list: hami})
	c.startPluginFor(t, p)
	answered := c.Driver.GPUs[2].UUID
	pod := newPod("hami", limited(wait("main", greedyImage), resource, 1), limited(wait("second", plainImage), resource, 1), wait("none", greedyImage))
	c.create(t, pod)
	now := c.awaitRunning(t, pod)
	for _, name := range []string{"main", "second"} {
		plan, _ := c.record(t, id(t, now, name))
		if len(plan.GPUs) != 1 || plan.GPUs[0].UUID != answered {
			t.Errorf("%s: got %v, want %s", name, plan.GPUs, answered)
		}
		if out := c.mustExec(t, pod, name, "/bin/sh", "-c", "echo $CUDA_DEVICE_MEMORY_LIMIT_0 $CUDA_DEVICE_SM_LIMIT; grep -c ' /tmp/vgpulock ' /proc/mounts"); out != "1024m 30\n1\n" {
			t.Errorf("%s: HAMi's variables and mount: %q", name, out)
		}
	}
	if plan, given := c.record(t, id(t, now, "none")); given && len(plan.GPUs) > 0 {
		t.Errorf("a container without a limit got %v", plan.GPUs)
	}
	thief := newPod("hami-thief", env(limited(wait("main", plainImage), resource, 1), "NVIDIA_VISIBLE_DEVICES", c.Driver.GPUs[0].UUID))
	c.refused(t, thief, "main", "is not this container's")
}
