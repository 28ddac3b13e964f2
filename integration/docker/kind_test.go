//go:build kind

package docker

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/images"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simhost"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testenv"
)

const (
	kindNode  = "kind-control-plane"
	kindImage = "docker.io/kindest/node:test"
	plugin    = "docker.io/test/nvidia-device-plugin:latest"
)

// kindMounts are the mounts of a node whose driver is simulated, before those of `nvidia-shimctl
// install --target kind`.
const kindMounts = `  extraMounts:
  - {hostPath: %q, containerPath: /sim/proc, readOnly: true}
  - {hostPath: %q, containerPath: /sim/sys, readOnly: true}
  - {hostPath: %q, containerPath: /etc/nvidia-shim/config.toml, readOnly: true}
`

// kindConfig follows that command's output. The test's own image of a node has no DNS and no proxy.
// Kubelets refuse cgroup v1 unless told. Without CAP_SYS_RESOURCE nothing may lower an OOM score.
const kindConfig = `- |-
  version = 2
  [plugins."io.containerd.grpc.v1.cri"]
    restrict_oom_score_adj = true
kubeadmConfigPatches:
- |-
  kind: InitConfiguration
  skipPhases: [preflight, addon/coredns, addon/kube-proxy]
- |-
  kind: KubeletConfiguration
  failCgroupV1: false
  oomScoreAdj: 0
`

const kindPods = `
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: nvidia-device-plugin, namespace: kube-system}
spec:
  selector: {matchLabels: {name: nvidia-device-plugin}}
  template:
    metadata: {labels: {name: nvidia-device-plugin}}
    spec:
      runtimeClassName: nvidia
      containers:
      - name: plugin
        image: ` + plugin + `
        imagePullPolicy: Never
        volumeMounts: [{name: sockets, mountPath: /var/lib/kubelet/device-plugins}]
      volumes: [{name: sockets, hostPath: {path: /var/lib/kubelet/device-plugins}}]
`

const kindPod = `
apiVersion: v1
kind: Pod
metadata: {name: %s}
spec:
  runtimeClassName: nvidia
  restartPolicy: Never
  containers:
  - name: main
    image: %s
    imagePullPolicy: Never
    command: %s
    env: [{name: NVIDIA_VISIBLE_DEVICES, value: all}]
    resources: {limits: {%s}}
`

// A kind cluster, made as docs/kind.md says, gives its pods the GPUs that they were allocated, and
// leaves no trace.
func TestKind(t *testing.T) {
	unchanged(t)
	e := shared
	keepSettings(e.life)
	loopbackUp(t)
	e.install(t, "--set-default")
	e.reload(t)
	testenv.Await(t, "the default runtime is nvidia", func() bool { return e.defaultRuntime(t) == "nvidia" })
	e.Import(t, filepath.Join(testenv.ShimDir(), "kind/node.tar"))
	e.Import(t, pluginImage(t))
	t.Cleanup(func() {
		if t.Failed() {
			r := e.try(t, nil, "exec", kindNode, "journalctl", "--no-pager", "--output=cat", "--lines=150")
			t.Log(e.try(t, nil, "logs", kindNode).Output, r.Output, r.Error)
		}
		e.command(t, "", "kind/kind", "delete", "cluster")
		if left := e.docker(t, "ps", "--all", "--quiet") + e.docker(t, "volume", "ls", "--quiet"); left != "" {
			t.Errorf("kind delete cluster left %q", left)
		}
		e.docker(t, "network", "rm", "kind")
	})
	e.command(t, "", "kind/kind", "create", "cluster", "--image", kindImage, "--config", e.kindConfig(t), "--wait", "3m", "--retain")
	e.command(t, "", "kind/kind", "load", "docker-image", plugin, e.image())
	t.Run("the node", func(t *testing.T) {
		out := e.docker(t, "exec", kindNode, "nvidia-smi", "-L")
		for _, g := range e.Driver.GPUs {
			simhost.Want(t, out, g.UUID)
		}
		e.docker(t, "exec", kindNode, "nvidia-shimctl", "check")
	})
	manifest := e.docker(t, "exec", kindNode, "nvidia-shimctl", "manifest")
	e.kubectl(t, manifest+"---"+kindPods, "apply", "-f", "-")
	e.kubectl(t, "", "rollout", "status", "--timeout=2m", "--namespace=kube-system", "daemonset/nvidia-device-plugin")
	t.Run("a pod with two GPUs", func(t *testing.T) { e.checkPod(t, "two", "nvidia.com/gpu: 2", 2) })
	t.Run("a pod with one GPU", func(t *testing.T) { e.checkPod(t, "one", "nvidia.com/gpu: 1", 1) })
	t.Run("a pod that requests none", func(t *testing.T) { e.checkPod(t, "none", "", 0) })
}

// kindConfig is a file with the configuration of a cluster whose host's driver is simulated.
func (e *engine) kindConfig(t *testing.T) string {
	t.Helper()
	text := e.Ctl(t, "install", "--target", "kind", "--bin-dir", testenv.ShimDir())
	shim := simhost.WriteFile(t, filepath.Join(e.Dir, "node.toml"), "[host]\nproc-root = \"/sim/proc\"\nsys-root = \"/sim/sys\"\n")
	mounts := fmt.Sprintf(kindMounts, e.Driver.ProcRoot, e.Driver.SysRoot, shim)
	return simhost.WriteFile(t, filepath.Join(e.Dir, "kind.yaml"), strings.Replace(text, "  extraMounts:\n", mounts, 1)+kindConfig)
}

// checkPod runs a pod whose environment wants all GPUs, and which gets count by its limits.
func (e *engine) checkPod(t *testing.T, name, limits string, count int) {
	t.Helper()
	command, err := json.Marshal(e.ProbeArgs())
	if err != nil {
		t.Fatal(err)
	}
	e.kubectl(t, fmt.Sprintf(kindPod, name, e.image(), command, limits), "apply", "-f", "-")
	e.kubectl(t, "", "wait", "--timeout=2m", "--for=jsonpath={.status.phase}=Succeeded", "pod/"+name)
	out := e.kubectl(t, "", "logs", name)
	var gpus []int
	for i, g := range e.Driver.GPUs {
		if slices.Contains(simhost.Parse(out).SMI, g.UUID) {
			gpus = append(gpus, i)
		}
	}
	if len(gpus) != count {
		t.Errorf("the pod sees the GPUs %v, want %d", gpus, count)
	}
	check(t, out, gpus...)
}

// command runs a program of bin/ that has to succeed, with stdin, and returns what it prints.
func (e *engine) command(t testing.TB, stdin, program string, args ...string) string {
	t.Helper()
	cmd := exec.Command(filepath.Join(testenv.ShimDir(), program), args...)
	cmd.Dir, cmd.Env, cmd.Stdin = e.Dir, e.environment(), strings.NewReader(stdin)
	r, err := testenv.Output(5*time.Minute, cmd)
	if err != nil || r.ExitCode != 0 {
		t.Fatalf("%s %s: %v, exit status %d\n%s%s", program, strings.Join(args, " "), err, r.ExitCode, r.Output, r.Error)
	}
	return r.Output
}

// kubectl uses the configuration that kind wrote into the home directory.
func (e *engine) kubectl(t testing.TB, stdin string, args ...string) string {
	t.Helper()
	return e.command(t, stdin, "kubernetes/kubectl", args...)
}

// pluginImage is NVIDIA's device plugin, with the environment of NVIDIA's image.
func pluginImage(t *testing.T) string {
	t.Helper()
	program := filepath.Join(testenv.ShimDir(), "kubernetes/nvidia-device-plugin")
	image, err := images.FromHostPrograms(plugin, nil, images.FromHost("usr/bin/nvidia-device-plugin", 0o755, program))
	if err != nil {
		t.Fatal(err)
	}
	// The simulated NVML has no events.
	image.Config.Env = append(image.Config.Env, "NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=utility", "DP_DISABLE_HEALTHCHECKS=all")
	image.Config.Entrypoint = []string{"nvidia-device-plugin"}
	file := filepath.Join(t.TempDir(), "plugin.tar")
	if err := image.Write(file); err != nil {
		t.Fatal(err)
	}
	return file
}

// loopbackUp is for the network namespace of the test.
func loopbackUp(t *testing.T) {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	lo, err := unix.NewIfreq("lo")
	if err != nil {
		t.Fatal(err)
	}
	lo.SetUint16(unix.IFF_UP | unix.IFF_RUNNING | unix.IFF_LOOPBACK)
	if err := unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, lo); err != nil {
		t.Fatal(err)
	}
}

// keepSettings restores the kernel settings that systemd and the kubelet of the node change and
// that belong to no namespace.
func keepSettings(t testing.TB) {
	read := func() map[string]string {
		values := map[string]string{}
		for _, dir := range []string{"kernel", "vm", "fs"} {
			err := filepath.WalkDir("/proc/sys/"+dir, func(path string, d os.DirEntry, err error) error {
				if info, statErr := d.Info(); err == nil && statErr == nil && info.Mode()&0o600 == 0o600 && info.Mode().IsRegular() && d.Name() != "ns_last_pid" {
					if value, err := os.ReadFile(path); err == nil {
						values[path] = string(value)
					}
				}
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
		}
		return values
	}
	before := read()
	t.Cleanup(func() {
		for path, value := range read() {
			if was, ok := before[path]; ok && was != value {
				t.Logf("%s: %q again, for %q", path, was, value)
				if err := os.WriteFile(path, []byte(was), 0); err != nil {
					t.Error(err)
				}
			}
		}
	})
}
