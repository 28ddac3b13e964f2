package attacks

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/images"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simdriver/sim"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simhost"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testenv"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testenv/kubelettest"
)

// newCluster is a host whose kubelet gave GPU 1 to the pod team/owner and nothing to team/none. The
// same attacks under a real kubelet are in integration/kubernetes.
func newCluster(t *testing.T, policy string) *host {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "kubelet.sock")
	h := newHost(t, simhost.Options{Driver: sim.Options{GPUs: 3}, Config: "[policy]\nkubelet-socket = \"" + socket + "\"\n" + policy})
	none := kubelettest.Pod("team", "none")
	none.Containers[0].Devices = nil
	kubelettest.Serve(t, socket, kubelettest.Pod("team", "owner", h.Driver.GPUs[1].UUID), none)
	return h
}

// sees fails the test unless a container starts and sees exactly these GPUs.
func (h *host) sees(t *testing.T, o testenv.RunOptions, gpus ...int) {
	t.Helper()
	o.Args = h.ProbeArgs()
	h.unharmed(t, func() {
		r := h.Run(t, o)
		if r.ExitCode != 0 {
			t.Errorf("it did not start: %s", r.Error)
			return
		}
		seen := simhost.Parse(r.Output)
		if len(gpus) > 0 {
			simhost.Compare(t, seen, h.Expect(gpus))
			return
		}
		for _, line := range append(seen.Open, seen.Mknod...) {
			if strings.Contains(line, "ENXIO") {
				t.Errorf("a device can be opened: %s", line)
			}
		}
		if len(seen.Dev) > 0 {
			t.Errorf("device nodes: %q", seen.Dev)
		}
	})
}

func TestNoImageOrPodWidensItsGrant(t *testing.T) {
	h := newCluster(t, "")
	owner, none := simhost.PodAnnotations("team", "owner", "main"), simhost.PodAnnotations("team", "none", "main")
	all := []string{"NVIDIA_VISIBLE_DEVICES=all"}
	t.Run("T39 an image asks for every GPU in a pod that has none", func(t *testing.T) {
		h.sees(t, testenv.RunOptions{Annotations: none, Env: all})
	})
	t.Run("T40 a pod names the GPU of another", func(t *testing.T) {
		h.unharmed(t, func() {
			for _, value := range []string{h.Driver.GPUs[0].UUID, "0", h.Driver.GPUs[0].BusID, "GPU-00000000-0000-0000-0000-000000000000", h.Driver.GPUs[1].UUID + ",0"} {
				for _, pod := range [][]string{owner, none} {
					o := testenv.RunOptions{Annotations: pod, Env: []string{"NVIDIA_VISIBLE_DEVICES=" + value}, Args: []string{"/bin/true"}}
					r := h.Run(t, o)
					if clean(t, r); r.ExitCode == 0 || !strings.Contains(r.Error, "is not this container's") && !strings.Contains(r.Error, "does not name its GPUs by UUID") {
						t.Errorf("%s: exit status %d, %s", value, r.ExitCode, r.Error)
					}
					for _, g := range h.Driver.GPUs[:1] {
						if !strings.Contains(value, g.UUID) && strings.Contains(r.Error, g.UUID) {
							t.Errorf("the error names another pod's GPU: %s", r.Error)
						}
					}
				}
			}
		})
		h.sees(t, testenv.RunOptions{Annotations: owner, Env: []string{"NVIDIA_VISIBLE_DEVICES=" + h.Driver.GPUs[1].UUID}}, 1)
	})
	t.Run("T41 an image older than CUDA 9", func(t *testing.T) {
		old := []string{"CUDA_VERSION=8.0.61", "NVIDIA_DRIVER_CAPABILITIES=compute,utility"}
		h.sees(t, testenv.RunOptions{Annotations: none, Env: old})
		// Its variable is what NVIDIA's device plugin sets; without a variable it asks for every
		// GPU.
		h.sees(t, testenv.RunOptions{Annotations: owner, Env: append(old, "NVIDIA_VISIBLE_DEVICES="+h.Driver.GPUs[1].UUID)}, 1)
		h.unharmed(t, func() {
			if r := h.Run(t, testenv.RunOptions{Annotations: owner, Env: old, Args: []string{"/bin/true"}}); r.ExitCode == 0 || !strings.Contains(r.Error, "by UUID") {
				t.Errorf("exit status %d, %s", r.ExitCode, r.Error)
			}
		})
	})
	t.Run("T45 forged annotations", func(t *testing.T) {
		forged := []string{"cdi.k8s.io/x=nvidia.com/gpu=0", "nvidia.cdi.k8s.io/container.main=nvidia.com/gpu=all", "nvidia.com/gpu=all", "device.containerd.io/x=nvidia.com/gpu=0"}
		h.sees(t, testenv.RunOptions{Annotations: append(slices.Clone(forged), none...), Env: all})
		h.sees(t, testenv.RunOptions{Annotations: append(slices.Clone(forged), none...)})
	})
	t.Run("T49 a namespace that looks like a trusted one", func(t *testing.T) {
		for _, name := range []string{"kube-systemd", "kube-system ", "KUBE-SYSTEM", "kube-system/x", "kube", ""} {
			h.sees(t, testenv.RunOptions{Annotations: simhost.PodAnnotations(name, "none", "main"), Env: all})
		}
		withoutNamespace := slices.DeleteFunc(slices.Clone(none), func(s string) bool { return strings.Contains(s, "sandbox-namespace") })
		h.sees(t, testenv.RunOptions{Annotations: withoutNamespace, Env: all})
	})
	t.Run("T44 forged device lists", func(t *testing.T) {
		image := h.Tree(t, "glibc-nocache", images.Symlink("innocent", "/var/run/nvidia-container-devices"))
		for _, at := range []string{
			"/var/run/nvidia-container-devicesX/all", "/var/run/nvidia-container-devices-/all", "/var/run/nvidia-container-device/all",
			"/var/run/nvidia-container-devices/../other/all", "/x/var/run/nvidia-container-devices/all", "/innocent/all",
		} {
			mount := []string{"type=bind,src=/dev/null,dst=" + at + ",options=rbind:ro"}
			for _, env := range [][]string{nil, all} {
				h.sees(t, testenv.RunOptions{RootfsDir: image, Annotations: none, Mounts: mount, Env: env})
			}
		}
	})
}

func TestT44DeviceListsThatAreNotAccepted(t *testing.T) {
	h := newCluster(t, "accept-volume-mounts = false\n")
	mount := []string{"type=bind,src=/dev/null,dst=/var/run/nvidia-container-devices/all,options=rbind:ro"}
	for _, env := range [][]string{nil, {"NVIDIA_VISIBLE_DEVICES=all"}} {
		h.sees(t, testenv.RunOptions{Annotations: simhost.PodAnnotations("team", "none", "main"), Mounts: mount, Env: env})
	}
}

func TestT42AnImageAsksForEveryCapability(t *testing.T) {
	const script = "ls /dev /dev/dri 2>/dev/null | grep -e modeset -e card -e renderD; ls " + simhost.Lib
	drawing := []string{"nvidia-modeset", "card", "renderD", "libGLX_nvidia", "libnvidia-encode"}
	t.Run("in a pod, with the default configuration", func(t *testing.T) {
		h := newCluster(t, "")
		r, ran := h.attempt(t, testenv.RunOptions{
			Annotations: simhost.PodAnnotations("team", "owner", "main"),
			Env:         []string{"NVIDIA_VISIBLE_DEVICES=" + h.Driver.GPUs[1].UUID, everything},
			Args:        []string{"/bin/sh", "-c", look + "; " + script},
		})
		if !ran {
			t.Fatal(r.Error)
		}
		_, list, _ := strings.Cut(r.Output, "done\n")
		simhost.Want(t, list, "renderD", "libGLX_nvidia", "libnvidia-encode")
		for _, name := range []string{"nvidia-modeset", "card"} {
			if strings.Contains(list, name) {
				t.Errorf("the container has %s:\n%s", name, list)
			}
		}
	})
	t.Run("of what the operator supports", func(t *testing.T) {
		h := newHost(t, simhost.Options{Config: "[container]\nsupported-capabilities = [\"compute\", \"utility\"]\n"})
		r, ran := h.attempt(t, testenv.RunOptions{Env: []string{one, everything}, Args: []string{"/bin/sh", "-c", look + "; " + script}})
		if !ran {
			t.Fatal(r.Error)
		}
		_, list, _ := strings.Cut(r.Output, "done\n")
		simhost.Want(t, list, "libcuda.so.1\n", "libnvidia-ml.so.1\n")
		for _, name := range drawing {
			if strings.Contains(list, name) {
				t.Errorf("the container has %s:\n%s", name, list)
			}
		}
	})
}

func TestT47HostileValuesInMessagesAndLogs(t *testing.T) {
	h := newHost(t, simhost.Options{})
	dir := h.Tree(t, "glibc-nocache")
	for i, value := range []string{
		"-1", "99999999999999999999", "0:0", "GPU-", "MIG-" + h.Driver.GPUs[0].UUID + "/../0", "\u0663", "0;1", "../../0", "0\x00", "%s%n%d",
		"first\nlevel=info msg=\"nvidia: forged\"", "\x1b[31mred\x1b[0m", "\u202egnp", strings.Repeat("x", 1<<20), strings.Repeat("9,", 1<<18),
	} {
		t.Run(fmt.Sprint("T47 value ", i), func(t *testing.T) {
			spec := h.Spec(t, testenv.RunOptions{RootfsDir: dir, Args: []string{"/bin/true"}})
			process := spec["process"].(map[string]any)
			process["env"] = append(process["env"].([]any), "NVIDIA_VISIBLE_DEVICES="+value)
			logged := len(h.Log())
			h.unharmed(t, func() {
				r := h.RunSpec(t, spec)
				if clean(t, r); r.ExitCode == 0 {
					t.Error("it started")
				}
				log := h.Log()[logged:]
				for _, text := range []string{strings.TrimSpace(r.Error), log} {
					if strings.ContainsAny(text, "\x00\x1b\u202e") || strings.Contains(text, strings.Repeat("x", 300)) {
						t.Errorf("the value is not quoted or not cut: %.2000q", text)
					}
				}
				if strings.Contains(r.Error, "\nlevel=") || strings.Contains(log, "\nlevel=info msg=\"nvidia: forged") || len(r.Error) > 1500 {
					t.Errorf("the error: %.2000q", r.Error)
				}
			})
		})
	}
}
