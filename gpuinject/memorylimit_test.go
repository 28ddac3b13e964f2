package gpuinject

import (
	"testing"
)

func TestMemoryLimitHook(t *testing.T) {
	for env, refuses := range map[string]bool{"NVIDIA_GPU_MEMORY_LIMIT=1024": true, "NVIDIA_GPU_MEMORY_REQUEST=1": true, "NVIDIA_GPU_MEMORY_LIMITS=1": false} {
		spec := newSpec(env)
		applyCDI(t, spec, realCDI(t), "nvidia.com/gpu=0")
		_, err := resolve(t, hostConfig(t), spec)
		if !refuses && err != nil {
			t.Errorf("%s: %v", env, err)
		}
		if refuses {
			refused(t, err, Denied, "limits GPU memory by a hook")
		}
	}
}
