package check

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host/driver"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/hosttree"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/procfs"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/semver"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/runtimeclass"
)

// node is what the checks examine. An error belongs to the value beside it.
type node struct {
	Options
	// config is the shim's configuration, or the default one if there is an error.
	config    *config.Config
	configErr error
	// path is containerd's PATH.
	path string
	// elsewhere is the program of a running containerd that is not executed: see runtimeclass.Place.
	elsewhere  string
	version    semver.Version
	versionErr error
	// registered is containerd's configuration, and handlers are the runtime handlers that start this
	// shim, by name. Both are empty if there is an error.
	registered    runtimeclass.Configuration
	handlers      map[string]runtimeclass.Runtime
	registeredErr error
	// file has the handlers. owner is the daemon that reads it; the zero value if it is a containerd.
	file  string
	owner runtimeclass.Daemon
	// gpus is nil without a driver; files are incomplete if there is an error.
	gpus    *host.Host
	files   driver.Files
	hostErr error
}

func inspect(ctx context.Context, o Options) *node {
	n := &node{Options: o, path: runtimeclass.ServicePath}
	n.Configs = map[string]string{}
	maps.Copy(n.Configs, o.Configs)
	for _, d := range runtimeclass.Daemons() {
		switch {
		case d.IsContainerd:
			n.file = cmp.Or(n.file, n.Configs[d.Name])
		case n.Configs[d.Name] != "":
			n.Target = cmp.Or(n.Target, d.Name)
		}
	}
	named := n.file != ""
	n.findContainerd()
	if n.config, n.configErr = config.Find(n.Config); n.configErr != nil {
		n.config = config.Default()
	}
	if n.Containerd != "" {
		n.version, n.versionErr = runtimeclass.DaemonVersion(ctx, n.Containerd)
	}
	n.registered, n.registeredErr = runtimeclass.ReadConfiguration(n.host(), n.file)
	n.handlers = n.registered.Ours()
	for _, d := range runtimeclass.Daemons() {
		if d.HasConfig() && !d.IsContainerd && (n.Target == d.Name || !named) {
			n.readRuntimes(d)
		}
	}
	h, err := host.Discover(n.config.Host)
	if n.hostErr = err; err != nil {
		return n
	}
	n.gpus = &h
	n.files, n.hostErr = h.DriverFiles()
	return n
}

// findContainerd finds the containerd of the target, its program and its configuration.
func (n *node) findContainerd() {
	target := runtimeclass.DaemonOf(n.Target)
	for _, p := range n.Proc.Running("containerd") {
		if owner := runtimeclass.Owner(p); n.Target == "" || owner == n.Target || owner == target.Uses {
			n.readDaemon(p)
			break
		}
	}
	if p := n.find("containerd", runtimeclass.ServicePath); p != "" && !target.Generated && n.elsewhere == "" {
		n.Containerd = cmp.Or(n.Containerd, n.real(p))
	}
	n.file = cmp.Or(n.file, n.findConfig())
	for _, d := range runtimeclass.Daemons() { // a distribution that is not running
		found := d.Program(n.Root)
		if d.Generated && found != "" && n.Containerd == "" && n.file == d.Config {
			n.Containerd = found
			n.path = filepath.Join("/", strings.TrimPrefix(filepath.Dir(found), n.Root)) + ":" + n.path
		}
	}
}

// readDaemon reads what a running containerd says about itself.
func (n *node) readDaemon(p procfs.Process) {
	if place := n.host().Place(p, "containerd"); place != "" { // guard: programs: none that a process names
		n.Containerd = cmp.Or(n.Containerd, n.real(place))
	} else if n.Containerd == "" {
		n.elsewhere = p.Program
	}
	n.path = cmp.Or(p.Environ["PATH"], n.path)
	n.Config = cmp.Or(n.Config, p.Environ[config.EnvFile])
	n.file = cmp.Or(n.file, runtimeclass.ConfigFlag(p.Args))
}

func (n *node) host() runtimeclass.Host {
	return runtimeclass.Host{Tree: hosttree.Tree{Root: n.Root}, Daemon: n.version}
}

// readRuntimes uses a daemon's own runtimes as the handlers if it is the target, or of a host that
// has no others.
func (n *node) readRuntimes(d runtimeclass.Daemon) {
	file := cmp.Or(n.Configs[d.Name], runtimeclass.ConfigFlag(n.daemon(d.Process).Args), d.Config)
	n.Configs[d.Name] = file
	list, err := n.host().Runtimes(d.Name, file)
	if n.Target == d.Name || n.Target == "" && len(n.handlers) == 0 && len(list) > 0 {
		n.owner, n.handlers, n.registered, n.registeredErr = d, list, runtimeclass.Configuration{}, err
		n.file = file
	}
}

// real returns the path by which this process reaches a path of the node.
func (n *node) real(name string) string { return filepath.Join(n.Root, name) }

func (n *node) exists(name string) bool {
	_, err := os.Stat(n.real(name))
	return err == nil
}

// lookPath finds a program in containerd's PATH, unless it is given by its path. known is false for
// a program that must not be executed, because only the environment of a process names its
// directory.
func (n *node) lookPath(name string) (p string, known bool, err error) {
	if filepath.IsAbs(name) {
		return name, true, nil
	}
	if p := n.find(name, n.path); p != "" {
		return p, runtimeclass.IsProgramDir(filepath.Dir(p)), nil // guard: programs: none in its PATH alone
	}
	return "", false, fmt.Errorf("%s is not in containerd's PATH (%s)", name, n.path)
}

// find returns the program of that name in a PATH, or "".
func (n *node) find(name, path string) string {
	for _, dir := range filepath.SplitList(path) {
		p := filepath.Join(dir, name)
		if _, err := exec.LookPath(n.real(p)); err == nil {
			return p
		}
	}
	return ""
}

// daemon is a daemon of this host.
type daemon struct {
	procfs.Process
	// program is its program, or, if it is not running, what systemd would start; "" if that is not
	// there, or if the program that runs is none to execute.
	program string
}

func (n *node) daemon(name string) (d daemon) {
	if running := n.Proc.Running(name); len(running) > 0 {
		d.Process = running[0]
		if place := n.host().Place(d.Process, name); place != "" {
			d.program = n.real(place)
		}
		return d
	}
	if found := n.find(name, runtimeclass.ServicePath); found != "" {
		d.program = n.real(found)
	}
	return d
}

// notExecuted says why the version of a program is unknown.
func notExecuted(name, program string) string {
	return fmt.Sprintf("%s is %s, which is not executed, because only a process or its PATH names it: its version is not checked", name, program)
}

// findConfig prefers the configuration of containerd itself to that of a distribution.
func (n *node) findConfig() string {
	if d := runtimeclass.DaemonOf(n.Target); d.Generated {
		return d.Config
	}
	for _, d := range runtimeclass.Daemons() {
		if n.Target == "" && d.IsContainerd && d.Config != "" && n.exists(d.Config) {
			return d.Config
		}
	}
	return runtimeclass.DefaultContainerdConfig
}

// programTimeout is long enough for any program, including one that asks NVML.
const programTimeout = 10 * time.Second

// run executes a program, as runtimeclass.Command does, and returns its output.
func run(ctx context.Context, program string, args ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, programTimeout)
	defer cancel()
	cmd, err := runtimeclass.Command(ctx, program, args...)
	if err != nil {
		return nil, err
	}
	out, err := cmd.Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) && len(exit.Stderr) > 0 {
		err = fmt.Errorf("%w: %.256q", err, exit.Stderr)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", strings.Join(cmd.Args, " "), err)
	}
	return out, nil
}
