package gpuinject

import (
	"time"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/health"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host/device"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/verdict"
)

// readHealth returns what this host's watcher says about its GPUs, which is nothing if policy.health
// is "off".
func readHealth(cfg *config.Config, h host.Host) (f health.File, log verdict.Log) {
	if cfg.Policy.Health == config.Off {
		return f, log
	}
	f, err := health.Read(cfg.Host.StateDir, h.DriverVersion, time.Now())
	if err != nil {
		log.Note("health of the GPUs is not known: %v", err)
	}
	return f, log
}

// withholdSick returns the host with the GPUs to refuse as faulty ones.
func withholdSick(h host.Host, f health.File) host.Host {
	for _, gpu := range h.GPUs {
		if g, sick := f.GPU(gpu.BusID); sick && g.State == health.Refuse { // guard: grant: no sick GPU
			h.Withhold(gpu, g.String())
		}
	}
	return h
}

// warnOfSick adds a warning for each of the container's GPUs that is sick.
func warnOfSick(f health.File, gpus []device.GPU, log *verdict.Log) {
	for _, gpu := range gpus {
		if g, sick := f.GPU(gpu.BusID); sick {
			log.Warn("GPU %d is %s", gpu.Index, g)
		}
	}
}
