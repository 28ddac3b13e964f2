package gpuinject

import (
	"slices"
	"testing"
)

func TestAMemoryLimitInTheEnvironmentIsIgnoredWithAWarning(t *testing.T) {
	job, err := resolve(t, hostConfig(t), newSpec("NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_GPU_MEMORY_LIMIT=1024"))
	if err != nil || !slices.Equal(job.Plan.Ignored, []string{"NVIDIA_GPU_MEMORY_LIMIT: this runtime does not limit GPU memory"}) {
		t.Errorf("ignored %q, %v", job.Plan.Ignored, err)
	}
}

func TestAMemoryLimitIsNotLostWithItsHook(t *testing.T) {
	for env, refuses := range map[string]bool{"NVIDIA_GPU_MEMORY_LIMIT=1024": true, "NVIDIA_GPU_MEMORY_REQUEST=1": true, "NVIDIA_GPU_MEMORY_LIMITS=1": false} {
		spec := newSpec(env)
		applyCDI(t, spec, realCDI(t, "nvidia-ctk-1.20.1.yaml"), "nvidia.com/gpu=0")
		_, err := resolve(t, hostConfig(t), spec)
		if !refuses && err != nil {
			t.Errorf("%s: %v", env, err)
		}
		if refuses {
			refused(t, err, Denied, "limits GPU memory by a hook")
		}
	}
}
