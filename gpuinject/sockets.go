package gpuinject

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host/driver"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/request"
)

// mpsDir is where CUDA looks for an MPS daemon by default, and envMPS the variable of
// a container that looks elsewhere: the device plugin sets it, with mounts of its own.
const (
	mpsDir = "/tmp/nvidia-mps"
	envMPS = "CUDA_MPS_PIPE_DIRECTORY"
)

// socketOptions are those of a daemon's directory. A socket of a read-only mount can be
// connected to, and neither it nor what is beside it can be removed or changed. It is
// the directory that is mounted, so that the container sees the socket of a daemon that
// was restarted.
var socketOptions = []string{"bind", "ro", "nosuid", "nodev", "noexec", "rprivate"}

// mpsOptions are those of the directory of MPS, whose clients may make files there.
var mpsOptions = []string{"bind", "rw", "nosuid", "nodev", "noexec", "rprivate"}

// daemon is one whose socket a container can be given (toolkit.md 4.1, IPC).
type daemon struct {
	name, capability string
	// below is the directory below /run; MPS has one that the operator chooses.
	below string
}

var daemons = []daemon{
	{config.Persistenced, request.Utility, "nvidia-persistenced"},
	{config.FabricManager, request.Utility, "nvidia-fabricmanager"},
	{config.MPS, request.Compute, ""},
}

// runDirs are /run by both its names.
var runDirs = []string{"/run", "/var/run"}

// findSockets finds the sockets that the operator lets containers have, as far as the
// daemons run. What is not as it should be is not given, and the plan says so.
func (j *Job) findSockets() {
	for _, d := range daemons {
		if !slices.Contains(j.Config.Container.Sockets, d.name) || !j.Request.Has(d.capability) {
			continue
		}
		mounts, err := j.daemonMounts(d)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			j.noSocket(d.name, "it does not run on this host")
		case err != nil:
			j.noSocket(d.name, err.Error())
		default:
			j.sockets = append(j.sockets, mounts...)
			j.Plan.Sockets = append(j.Plan.Sockets, d.name)
			j.explain("socket of "+d.name, "given", "container.sockets has it")
		}
	}
}

func (j *Job) noSocket(name, reason string) {
	j.Plan.note("no socket of " + name + ": " + reason)
	j.explain("socket of "+name, "not given", "%s", reason)
}

// locate finds the directory of the daemon's socket: that of MPS on this host, those
// of the others below /run in the driver root.
func (d daemon) locate(h config.Host) (dir string, err error) {
	if d.name == config.MPS {
		return driver.LocateSocket("/", driver.Socket{Dir: h.MPSPipeDirectory, Name: "control", Pipe: true})
	}
	for _, run := range runDirs {
		dir, err = driver.LocateSocket(h.DriverRoot, driver.Socket{Dir: run + "/" + d.below, Name: "socket"})
		if !errors.Is(err, fs.ErrNotExist) {
			break
		}
	}
	return dir, err
}

// DaemonSocket finds the socket of one of the daemons of container.sockets, as a
// container would get it, and returns the directory that it is in. An error that is
// fs.ErrNotExist says that the daemon does not run.
func DaemonSocket(cfg *config.Config, name string) (dir string, err error) {
	i := slices.IndexFunc(daemons, func(d daemon) bool { return d.name == name })
	if i < 0 {
		return "", fmt.Errorf("unknown daemon %q", name)
	}
	return daemons[i].locate(cfg.Host)
}

// daemonMounts are those of the directory of a daemon's socket.
func (j *Job) daemonMounts(d daemon) ([]specs.Mount, error) {
	if d.name == config.MPS {
		return j.mpsMounts(d)
	}
	source, err := d.locate(j.Config.Host)
	if err != nil {
		return nil, err
	}
	var mounts []specs.Mount
	for _, run := range runDirs {
		mounts = append(mounts, specs.Mount{Source: source, Destination: run + "/" + d.below, Type: "bind", Options: socketOptions})
	}
	return mounts, nil
}

// ownMPS tells whether the container says where its MPS daemon is.
func (j *Job) ownMPS() bool {
	return slices.ContainsFunc(j.bundle.Spec.Process.Env, func(entry string) bool { return strings.HasPrefix(entry, envMPS+"=") })
}

// mpsMounts are those of the MPS daemon of this host.
func (j *Job) mpsMounts(d daemon) ([]specs.Mount, error) {
	if j.ownMPS() {
		return nil, errors.New("the container has an MPS daemon of its own by " + envMPS)
	}
	if len(j.set.MIG) > 0 {
		return nil, errors.New("a MIG device needs an MPS daemon of its own")
	}
	source, err := d.locate(j.Config.Host)
	if err != nil {
		return nil, err
	}
	return []specs.Mount{{Source: source, Destination: mpsDir, Type: "bind", Options: mpsOptions}}, nil
}

// socketMounts are those that the container gets: each place once, by whatever name,
// and nothing where it has a mount itself.
func (j *Job) socketMounts(volumes []placed) []specs.Mount {
	var mounts []specs.Mount
	var taken []string
	for _, m := range j.sockets {
		at := j.target(m.Destination)
		if j.image == nil {
			// Nearly every image's /var/run is /run.
			at = strings.TrimPrefix(at, "/var")
		}
		if slices.Contains(taken, at) {
			continue
		}
		taken = append(taken, at)
		if v, ok := j.covering(volumes, m.Destination); ok {
			j.Plan.note("not mounted at " + m.Destination + ": the container mounts " + request.Quote(v.Destination) + " there")
			continue
		}
		mounts = append(mounts, m)
	}
	return mounts
}
