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
// that looks elsewhere: see NamesOwnMPS.
const (
	MPSDir = "/tmp/nvidia-mps"
	EnvMPS = "CUDA_MPS_PIPE_DIRECTORY"
)

// Daemon is a daemon whose socket a container can get.
type Daemon struct {
	// Name is its name in container.sockets.
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

// inRun returns both names of a directory below /run.
func inRun(name string) []string { return []string{"/run/" + name, "/var/run/" + name} }

// NamesOwnMPS reports whether the value of EnvMPS names an MPS daemon of the container's own: the
// device plugin sets it, with mounts of its own. The host's daemon can be named by its directory on
// the host and by MPSDir.
func NamesOwnMPS(h config.Host, value string) bool {
	return value != "" && path.Clean(value) != MPSDir && path.Clean(value) != path.Clean(h.MPSPipeDirectory)
}

// Destinations returns where the container looks for the daemon. mps is its value of EnvMPS.
func (d Daemon) Destinations(mps string) []string {
	if d.Name == config.MPS && mps != "" {
		return []string{path.Clean(mps)}
	}
	return d.Dirs
}

// Mount returns the directory of the daemon's socket and the mount's options. The directory is
// mounted at each of Destinations, so that the container sees the new socket after the daemon
// restarts. mps is the container's value of EnvMPS; hasMIG is true if it gets MIG devices. The error
// is fs.ErrNotExist if the daemon does not run.
func (d Daemon) Mount(h config.Host, mps string, hasMIG bool) (source string, options []string, err error) {
	switch {
	case d.Name == config.MPS && NamesOwnMPS(h, mps): // guard: sockets: none beside an own MPS daemon
		return "", nil, errors.New("the container has an MPS daemon of its own by " + EnvMPS)
	case d.Name == config.MPS && hasMIG:
		return "", nil, errors.New("a MIG device needs an MPS daemon of its own")
	}
	// A socket on a read-only mount accepts connections, and no file there can be removed or
	// changed. Clients of MPS may create files there.
	options = []string{"bind", "ro", "nosuid", "nodev", "noexec", "rprivate"}
	if d.Name == config.MPS {
		options[1] = "rw"
	}
	source, err = d.Locate(h)
	return source, options, err
}

// IsMount reports whether a mount at dest with these options is a mount of a daemon's socket as in
// NVIDIA's CDI specifications, which is noexec.
func IsMount(dest string, options []string) bool {
	dir, name := path.Split(dest)
	known := dest == MPSDir || name == "socket" && slices.ContainsFunc(Daemons, func(d Daemon) bool {
		return d.Name != config.MPS && slices.Contains(d.Dirs, path.Clean(dir))
	})
	return known && !slices.ContainsFunc([]string{"nosuid", "nodev", "noexec"}, func(o string) bool { return !slices.Contains(options, o) })
}

// Locate finds the directory of the daemon's socket: for MPS on this host, for the others below
// /run in the driver root. The error is fs.ErrNotExist if the daemon does not run.
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
