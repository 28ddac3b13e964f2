package check

import (
	"time"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/health"
)

// checkHealth reports what this host's watcher says about its GPUs. A sick GPU is no problem of the
// node: containers with other GPUs start.
func checkHealth(n *node) []Finding {
	const watch = "systemctl enable --now nvidia-shim-serve, or run nvidia-shimctl serve or node"
	if n.gpus == nil || n.gpus.Platform != "" {
		return nil
	}
	if n.config.Policy.Health == config.Off {
		return fine("policy.health is \"off\"")
	}
	f, err := health.Read(n.config.Host.StateDir, n.gpus.DriverVersion, time.Now())
	switch {
	case err != nil:
		return warning(watch, "%v", err)
	case f.Time.IsZero() && n.config.Policy.Health == config.Refuse:
		return warning(watch, "policy.health is \"refuse\", but nothing watches the health of the GPUs")
	case f.Time.IsZero():
		return fine("nothing watches the health of the GPUs")
	}
	list := fine("the health of %d GPUs is watched", len(f.GPUs))
	if f.Unwatched != "" {
		list = fine("the health of %d GPUs is read every %s: %s", len(f.GPUs), health.Interval, f.Unwatched)
	}
	for _, gpu := range n.gpus.GPUs {
		if g, sick := f.GPU(gpu.BusID); sick {
			list = append(list, warning(g.Fix, "GPU %d (%s) is unhealthy since %s: %s", gpu.Index, gpu.BusID, g.Since.Format(time.DateTime), g.Reason)...)
		}
	}
	return list
}
