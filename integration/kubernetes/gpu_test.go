//go:build gpu

package kubernetes

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/images"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simdriver/sim"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testenv"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testenv/mounts"
)

// With the tag gpu the node has the host's real GPUs, NVIDIA's own device plugin and
// images of the host's own programs: run -test.run '^TestOnRealGPUs' or the benchmark. The
// other tests need a node with the simulated driver.
func init() { makeNode, benchPart, benchDriver = startReal, "kubernetes-real", "NVIDIA driver" }

func startReal(life *testenv.Lifetime) (*cluster, error) {
	c := &cluster{processes: map[string]*testenv.Command{}}
	return c, c.bringUp(life, c.realDriver, c.delegateCgroups, c.startContainerd, c.importHostImages, c.startControlPlane, c.startKubelet, c.createRuntimeClasses, c.realPlugin)
}

// realDriver writes a configuration that uses the host's driver with a state
// directory of the test's own.
func (c *cluster) realDriver(life *testenv.Lifetime) error {
	if _, err := os.Stat("/proc/driver/nvidia/version"); err != nil {
		return fmt.Errorf("this host has no NVIDIA driver: %w", err)
	}
	dir, err := os.MkdirTemp("", "nvgpu")
	if err != nil {
		return err
	}
	life.Cleanup(func() {
		if err := mounts.RemoveAll(dir); err != nil {
			life.Error(err)
		}
	})
	c.Driver = &sim.Driver{ConfigPath: filepath.Join(dir, "config.toml"), DevRoot: "/"}
	c.shimBase = fmt.Sprintf("[host]\nstate-dir = %q\n", filepath.Join(dir, "state"))
	version, err := os.ReadFile("/sys/module/nvidia/version")
	if err != nil {
		return err
	}
	c.Driver.KernelVersion = strings.TrimSpace(string(version))
	c.Driver.GPUs, err = realGPUs()
	return err
}

// realGPUs returns the host's GPUs as procfs describes them.
func realGPUs() (gpus []sim.GPU, err error) {
	files, err := filepath.Glob("/proc/driver/nvidia/gpus/*/information")
	if err != nil {
		return nil, err
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		m := gpuInformation.FindSubmatch(text)
		if m == nil {
			return nil, fmt.Errorf("%s: %q", file, text)
		}
		minor, err := strconv.Atoi(string(m[2]))
		if err != nil {
			return nil, err
		}
		gpus = append(gpus, sim.GPU{UUID: string(m[1]), Minor: minor})
	}
	return gpus, nil
}

var gpuInformation = regexp.MustCompile(`(?s)GPU UUID:\s*(GPU-\S+).*Device Minor:\s*(\d+)`)

// delegateCgroups makes the controllers available that the kubelet wants, on a
// cgroup v2 host that no systemd has set up.
func (c *cluster) delegateCgroups(*testenv.Lifetime) error {
	const root = "/sys/fs/cgroup"
	for _, controller := range []string{"cpu", "cpuset", "memory", "pids", "hugetlb", "io"} {
		_ = os.WriteFile(filepath.Join(root, "cgroup.subtree_control"), []byte("+"+controller), 0)
	}
	return nil
}

func (c *cluster) importHostImages(*testenv.Lifetime) error {
	programs := []string{"sh", "sleep", "ls", "cat", "grep", "true"}
	var files []images.File
	if dir := os.Getenv("NVIDIA_SHIM_GPU_PROGRAMS"); dir != "" {
		files = append(files, images.FromHost("usr/bin/vectoradd", 0o755, filepath.Join(dir, "vectoradd")))
	}
	for _, name := range []string{plainImage, greedyImage, pauseImage} {
		image, err := images.FromHostPrograms(name, programs, files...)
		if err != nil {
			return err
		}
		if name != plainImage {
			image.Config.Env = append(image.Config.Env, "NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=all")
		}
		if name == pauseImage {
			image.Config.Entrypoint = []string{"/bin/sh", "-c", untilTerm}
		}
		if err := c.importAll(image); err != nil {
			return err
		}
	}
	return nil
}

// realPlugin runs NVIDIA's device plugin as a node has it by default.
func (c *cluster) realPlugin(life *testenv.Lifetime) error {
	p := &testenv.Command{
		Name: "nvidia-device-plugin",
		Argv: []string{filepath.Join(binDir(), "nvidia-device-plugin"), "--device-discovery-strategy=nvml", "--device-list-strategy=envvar"},
		Dir:  c.dir, Log: filepath.Join(c.dir, "plugin.log"),
		Env: []string{"PATH=/usr/bin:/bin", "NVIDIA_DRIVER_ROOT=/", "DRIVER_ROOT_CTR_PATH=/"},
	}
	if err := p.Start(); err != nil {
		return err
	}
	life.Cleanup(p.Stop)
	c.processes[p.Name] = p
	return c.await("the GPUs in the node's status", func() error {
		node, err := c.node()
		if err != nil {
			return err
		}
		if q := node.Status.Allocatable["nvidia.com/gpu"]; q.Value() == 0 {
			return fmt.Errorf("none yet: %s", p.Tail(2<<10))
		}
		return nil
	})
}

func TestOnRealGPUsAPodGetsTheAllocatedGPUAndAGreedyImageNone(t *testing.T) {
	c := shared
	one, none := newPod("one", with(wait("main", greedyImage), 1)), newPod("none", wait("main", greedyImage))
	for _, pod := range []*corev1.Pod{one, none} {
		c.create(t, pod)
	}
	for _, pod := range []*corev1.Pod{one, none} {
		c.awaitRunning(t, pod)
	}
	ids := c.allocated(t, one, "main")
	if len(ids) != 1 {
		t.Fatalf("the kubelet allocated %q", ids)
	}
	out, err := c.exec(one.Namespace, one.Name, "main", "nvidia-smi", "-L")
	if err != nil || strings.Count(out, "GPU-") != 1 || !strings.Contains(out, ids[0]) {
		t.Errorf("the pod with GPU %s: %q %v", ids[0], out, err)
	}
	t.Logf("allocated %s, nvidia-smi -L in the pod: %s", ids[0], out)
	if os.Getenv("NVIDIA_SHIM_GPU_PROGRAMS") != "" {
		out, err := c.exec(one.Namespace, one.Name, "main", "vectoradd")
		if err != nil || !strings.HasPrefix(out, "count 1\n") || !strings.Contains(out, ids[0]) || !strings.Contains(out, " ok\n") {
			t.Errorf("a CUDA kernel in the pod: %q %v", out, err)
		}
		t.Log(out)
	}
	out, err = c.exec(none.Namespace, none.Name, "main", "sh", "-c", "ls /dev | grep nvidia; ls /usr/local/nvidia 2>&1; true")
	if err != nil || strings.Contains(out, "nvidia0") || !strings.Contains(out, "No such file") {
		t.Errorf("the pod without a GPU, whose image asks for all: %q %v", out, err)
	}
	other := newPod("other", env(wait("main", plainImage), "NVIDIA_VISIBLE_DEVICES", ids[0]))
	c.create(t, other)
	c.awaitRefused(t, other, "main", "is not this container's")
}
