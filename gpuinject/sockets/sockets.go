package sockets

import (
	"errors"
	"io/fs"
	"path"
	"slices"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host/driver"
)

// MPSDir is where CUDA looks for an MPS daemon by default, and EnvMPS the variable of a container
// that looks elsewhere: the device plugin sets it, with mounts of its own.
const (
	MPSDir = "/tmp/nvidia-mps"
	EnvMPS = "CUDA_MPS_PIPE_DIRECTORY"
)

// Daemon is one whose socket a container can be given.
type Daemon struct {
	// Name in container.sockets.
	Name string
	// Capability is what a container must ask for to get the socket.
	Capability string
	// Dirs are the names of the socket's directory in a container.
	Dirs []string
}

// Daemons are all of them.
var Daemons = []Daemon{
	{config.Persistenced, config.Utility, inRun("nvidia-persistenced")},
	{config.FabricManager, config.Utility, inRun("nvidia-fabricmanager")},
	{config.MPS, config.Compute, []string{MPSDir}},
}

// inRun returns a directory below /run by both its names.
func inRun(name string) []string { return []string{"/run/" + name, "/var/run/" + name} }

// Mount returns the directory of the daemon's socket, which is mounted at each of Dirs, so that the
// container sees the socket of a daemon that was restarted, and the mount's options. ownMPS is true
// if the container says where its MPS daemon is, hasMIG if it gets MIG devices. The error is
// fs.ErrNotExist if the daemon does not run.
func (d Daemon) Mount(h config.Host, ownMPS, hasMIG bool) (source string, options []string, err error) {
	switch {
	case d.Name == config.MPS && ownMPS:
		return "", nil, errors.New("the container has an MPS daemon of its own by " + EnvMPS)
	case d.Name == config.MPS && hasMIG:
		return "", nil, errors.New("a MIG device needs an MPS daemon of its own")
	}
	// A socket of a read-only mount can be connected to, and neither it nor its neighbours can be
	// removed or changed. The clients of MPS may make files there.
	options = []string{"bind", "ro", "nosuid", "nodev", "noexec", "rprivate"}
	if d.Name == config.MPS {
		options[1] = "rw"
	}
	source, err = d.Locate(h)
	return source, options, err
}

// IsMount reports whether a mount at dest with these options is one of a daemon's socket as
// NVIDIA's CDI specifications make it: nothing in it can be executed.
func IsMount(dest string, options []string) bool {
	dir, name := path.Split(dest)
	known := dest == MPSDir || name == "socket" && slices.ContainsFunc(Daemons, func(d Daemon) bool {
		return d.Name != config.MPS && slices.Contains(d.Dirs, path.Clean(dir))
	})
	return known && !slices.ContainsFunc([]string{"nosuid", "nodev", "noexec"}, func(o string) bool { return !slices.Contains(options, o) })
}

// Locate finds the directory of the daemon's socket: that of MPS on this host, those of the others
// below /run in the driver root. The error is fs.ErrNotExist if the daemon does not run.
func (d Daemon) Locate(h config.Host) (dir string, err error) {
	if d.Name == config.MPS {
		return driver.LocateSocket("/", h.MPSPipeDirectory, "control", true)
	}
	for _, name := range d.Dirs {
		dir, err = driver.LocateSocket(h.DriverRoot, name, "socket", false)
		if !errors.Is(err, fs.ErrNotExist) {
			break
		}
	}
	return dir, err
}
