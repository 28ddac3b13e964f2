package gpuinject

import (
	"errors"
	"slices"
	"testing"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
)

func TestAnnotationsGrantOutsideKubernetesAndSelectInAPod(t *testing.T) {
	const key = "cdi.k8s.io/x"
	unprivileged := func(p *config.Policy) { p.AcceptEnvWhenUnprivileged = false }
	for _, tc := range []struct {
		name, value string
		env         []string
		pod         bool
		allocated   []int
		change      func(*config.Policy)
		want        []int
		nothing     bool
		left        bool
	}{
		{name: "outside Kubernetes", value: "nvidia.com/gpu=3", want: []int{3}},
		{name: "outside Kubernetes it goes before the environment", value: "nvidia.com/gpu=3", env: []string{"NVIDIA_VISIBLE_DEVICES=0"}, want: []int{3}},
		{name: "outside Kubernetes it grants where the environment does not", value: "nvidia.com/gpu=3", want: []int{3}, change: unprivileged},
		{name: "void leaves it alone", value: "nvidia.com/gpu=3", env: []string{"NVIDIA_VISIBLE_DEVICES=void"}, left: true},
		{name: "in a pod it selects among the allocated", value: "nvidia.com/gpu=3", pod: true, allocated: []int{1, 3}, want: []int{3}},
		{name: "in a pod it does not grant", value: "nvidia.com/gpu=3", pod: true, allocated: []int{1}, nothing: true},
		{name: "in a pod it does not stand in the way of what was allocated", value: "nvidia.com/gpu=3", env: []string{"NVIDIA_VISIBLE_DEVICES=all"}, pod: true, allocated: []int{1}, want: []int{1}},
		{name: "in a pod that names GPUs by its environment too", value: "nvidia.com/gpu=1", env: []string{"NVIDIA_VISIBLE_DEVICES=all"}, pod: true, allocated: []int{1, 2}, want: []int{1}},
		{name: "in a pod beside an environment that nobody has to read", value: "nvidia.com/gpu=1", env: []string{"NVIDIA_VISIBLE_DEVICES=nvidia.com/toaster=0"}, pod: true, allocated: []int{1, 2}, want: []int{1}},
		{name: "in a pod beside a device list that does not count", value: "nvidia.com/gpu=1", env: []string{"NVIDIA_VISIBLE_DEVICES=/var/run/nvidia-container-devices"}, pod: true, allocated: []int{1, 2}, want: []int{1},
			change: func(p *config.Policy) { p.AcceptVolumeMounts = false }},
		{name: "in a pod, all of what was allocated", value: "nvidia.com/gpu=all", pod: true, allocated: []int{1, 2}, want: []int{1, 2}},
		{name: "in a pod without an allocation", value: "nvidia.com/gpu=3", pod: true, nothing: true},
		{name: "in a pod, a GPU that no host has", value: "nvidia.com/gpu=77", pod: true, allocated: []int{1}, nothing: true},
		{name: "in a pod, another vendor's", value: "example.com/nic=0", pod: true, left: true},
		{name: "in a pod, a mistake", value: "k8s.gpu.nvidia.com/claim=abc", pod: true, left: true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			cfg := hostConfig(t)
			if tc.change != nil {
				tc.change(&cfg.Policy)
			}
			spec := newSpec(tc.env...)
			if tc.pod {
				spec = pod(t, "default", tc.allocated, tc.env...)
			}
			spec.Annotations[key] = tc.value
			if tc.left {
				if job, err := ExamineSpec(spec, loading(cfg)); job != nil || err != nil {
					t.Errorf("%+v, %v", job, err)
				}
				return
			}
			job, err := resolve(t, cfg, spec)
			if tc.nothing {
				if !errors.Is(err, ErrNotGranted) || len(job.Plan.Ignored) != 1 {
					t.Errorf("%v, ignored %q", err, job.Plan.Ignored)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			var gpus []int
			for _, g := range job.Plan.GPUs {
				gpus = append(gpus, g.Index)
			}
			if !slices.Equal(gpus, tc.want) {
				t.Errorf("GPUs %v, want %v", gpus, tc.want)
			}
		})
	}
	t.Run("in a pod on a host without a driver", func(t *testing.T) {
		cfg := hostConfig(t)
		spec := pod(t, "default", nil)
		cfg.Host.ProcRoot = t.TempDir()
		spec.Annotations[key] = "nvidia.com/gpu=0"
		if _, err := resolve(t, cfg, spec); !errors.Is(err, ErrNotGranted) {
			t.Errorf("%v", err)
		}
	})
	t.Run("in a pod that has to be read by its environment, a mistake there is an error", func(t *testing.T) {
		spec := pod(t, "default", []int{1}, "NVIDIA_VISIBLE_DEVICES=nvidia.com/toaster=0")
		spec.Annotations[key] = "nvidia.com/gpu=3"
		_, err := resolve(t, hostConfig(t), spec)
		refused(t, err, Invalid, "nvidia.com/toaster=0")
	})
	t.Run("a malformed one outside Kubernetes is an error", func(t *testing.T) {
		spec := newSpec()
		spec.Annotations[key] = "nvidia.com/toaster=0"
		_, err := ExamineSpec(spec, loading(hostConfig(t)))
		refused(t, err, Invalid, "cdi.k8s.io/x", "nvidia.com/toaster=0")
	})
	t.Run("other devices by annotation are granted outside Kubernetes only", func(t *testing.T) {
		for _, inPod := range []bool{false, true} {
			cfg := hostConfig(t)
			unprivileged(&cfg.Policy)
			spec := newSpec()
			if inPod {
				spec = pod(t, "default", []int{0})
			}
			spec.Annotations[key] = "nvidia.com/gpu=0,nvidia.com/gdrcopy=all,nvidia.com/imex-channel=1"
			job, err := resolve(t, cfg, spec)
			if err != nil {
				t.Fatal(err)
			}
			if got := len(job.Plan.Classes) == 2; got == inPod {
				t.Errorf("in a pod %v: classes %q, ignored %q", inPod, job.Plan.Classes, job.Plan.Ignored)
			}
		}
	})
}
