package gpuinject

import (
	"time"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/verdict"
)

// Annotations of a container. annotationOnPause overrides container.on-pause; annotationIdle asks that
// the container is suspended when it has not used its GPUs for this time.
const (
	annotationOnPause = "io.containerd.nvidia.on-pause"
	annotationIdle    = "io.containerd.nvidia.suspend-idle-after"
)

// idleAfter returns how long a container that asks by annotation has to be idle before it is
// suspended, 0 if it does not ask or the operator does not allow it. least is
// policy.suspend-idle-after.
func idleAfter(asked, least, onPause string) (time.Duration, error) {
	if asked == "" {
		return 0, nil
	}
	after, err := config.ParseIdle(asked)
	if err != nil {
		return 0, verdict.Invalid("annotation %s: %w", annotationIdle, err)
	}
	if onPause != config.SuspendGPU {
		return 0, verdict.Invalid("annotation %s: the container keeps its GPUs when it is paused: set %s to %s", annotationIdle, annotationOnPause, config.SuspendGPU)
	}
	floor, err := config.ParseIdle(least)
	if err != nil { // guard: idle: allowed by the operator
		return 0, nil
	}
	return max(after, floor), nil // guard: idle: not before the operator's time
}
