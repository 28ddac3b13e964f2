package gpuinject

import (
	"fmt"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/driver"
)

// DaemonSocket finds the socket of one of the daemons of container.sockets, as a
// container would get it, and returns the directory that it is in. An error that is
// fs.ErrNotExist says that the daemon does not run.
func DaemonSocket(cfg *config.Config, name string) (dir string, err error) {
	if name == config.MPS {
		return driver.LocateSocket("/", driver.Socket{Dir: cfg.Host.MPSPipeDirectory, Name: "control", Pipe: true})
	}
	for _, d := range daemons {
		if d.name == name {
			mounts, err := (&Job{Config: cfg}).daemonMounts(d.below)
			if err != nil {
				return "", err
			}
			return mounts[0].Source, nil
		}
	}
	return "", fmt.Errorf("unknown daemon %q", name)
}
