package kubernetes

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simdriver/sim"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testenv"
)

// operatorNamespace is where GPU Operator's pods are.
const operatorNamespace = "gpu-operator"

// startNRIPlugin runs what GPU Operator 26.7 runs on a node with CDI by NRI: the toolkit's installer
// writes the CDI file of its own pods, and is a plugin of NRI that adds the CDI devices which a pod's
// annotations name. There is nothing that it could install here.
func startNRIPlugin(t *testing.T) {
	t.Helper()
	dir := t.TempDir()
	installer := filepath.Join(dir, "nvidia-ctk-installer")
	build := exec.Command("go", "build", "-trimpath", "-o", installer, "github.com/NVIDIA/nvidia-container-toolkit/cmd/nvidia-ctk-installer")
	build.Dir = "../tools/nvidia-ctk"
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	t.Cleanup(func() { _ = os.Remove(filepath.Join(cdiDir, "management.nvidia.com-gpu.yaml")) })
	startNVIDIAs(t, &testenv.Command{
		Name: "nvidia-ctk-installer", Dir: dir, Log: filepath.Join(dir, "log"), Env: nvidiaEnv(t),
		Argv: []string{
			installer, "--runtime=containerd", "--toolkit-install-dir=" + filepath.Join(dir, "install"), "--toolkit-source-root=" + dir, "--ignore-errors",
			"--pid-file=" + filepath.Join(dir, "toolkit.pid"), "--cdi-enabled", "--cdi-output-dir=" + cdiDir, "--create-device-nodes=none",
			"--enable-nri-plugin", "--nri-socket=" + filepath.Join(shared.dir, "nri.sock"), "--nri-namespace=" + operatorNamespace,
		},
	}, "Waiting for signal")
}

// What NVIDIA's plugin of NRI adds is taken over as CDI's devices are, also beside the same device
// from the kubelet.
func TestGPUOperatorsPluginOfNRI(t *testing.T) {
	c := shared
	c.namespace(t, operatorNamespace)
	nvidia(t, "nvidia.com/gpu", len(c.Driver.GPUs), "", "--device-list-strategy=cdi-cri")
	startNRIPlugin(t)
	all := c.Driver.GPUs
	const management = "management.nvidia.com/gpu=all"
	device := "k8s.device-plugin.nvidia.com/gpu=" + all[1].UUID
	for _, tc := range []struct {
		name, namespace, handler, devices string
		limit                             int64
		want                              []sim.GPU
	}{
		{"management", operatorNamespace, handler, management, 0, all},
		{"management-elsewhere", "default", handler, management, 0, nil},
		{"management-as-annotation", "default", annotatedHandler, management, 0, nil},
		{"twice", "default", handler, device, int64(len(all)), all},
	} {
		t.Run(tc.name, func(t *testing.T) {
			container := wait("main", greedyImage)
			if tc.limit > 0 {
				container = with(container, tc.limit)
			}
			pod := newPod("nri-"+tc.name, container)
			pod.Namespace, pod.Spec.RuntimeClassName = tc.namespace, new(tc.handler)
			pod.Annotations = map[string]string{"nvidia.cdi.k8s.io/container.main": tc.devices}
			now := c.startPod(t, pod)
			defer c.delete(t, pod)
			if tc.name != "management" {
				c.check(t, pod, "main", true, tc.want...)
			} else if out := c.mustExec(t, pod, "main", "/bin/sh", "-c", "ls -d /dev/nvidia[0-9]*"); strings.Count(out, "\n") != len(all) { // it may configure MIG, too
				t.Errorf("GPUs of management: %q", out)
			}
			c.checkAdded(t, now, len(tc.want) > 0)
		})
	}
}

// checkAdded checks that what NRI added to a container is there once, and without hooks.
func (c *cluster) checkAdded(t *testing.T, pod corev1.Pod, given bool) {
	t.Helper()
	var spec struct {
		Linux struct{ Devices []struct{ Path string } }
	}
	text, err := os.ReadFile(filepath.Join(c.bundle(id(t, pod, "main")), "config.json"))
	if err == nil {
		err = json.Unmarshal(text, &spec)
	}
	if err != nil || strings.Contains(string(text), "nvidia-cdi-hook") {
		t.Errorf("hooks: %v: %s", err, text)
	}
	nodes := map[string]int{}
	for _, d := range spec.Linux.Devices {
		if nodes[d.Path]++; nodes[d.Path] > 1 {
			t.Errorf("%s is there %d times", d.Path, nodes[d.Path])
		}
	}
	r, ok := c.record(t, id(t, pod, "main"))
	if ok != given || given && !strings.HasPrefix(r.Grant, "taken over from CDI: GPU-") {
		t.Errorf("record %v: grant %q", ok, r.Grant)
	}
}
