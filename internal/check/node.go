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
	"slices"
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
	path       string
	version    semver.Version
	versionErr error
	// registered is containerd's configuration, and handlers are the runtime handlers in it that
	// start this shim, by name. Both are empty if there is an error.
	registered    runtimeclass.Configuration
	handlers      map[string]runtimeclass.Runtime
	registeredErr error
	// docker is true if the handlers are Docker's runtimes.
	docker bool
	// gpus is nil without a driver; files are incomplete if there is an error.
	gpus    *host.Host
	files   driver.Files
	hostErr error
}

// inspect reads what several checks need.
func inspect(ctx context.Context, o Options) *node {
	if o.Target == "" && o.DockerConfig != "" {
		o.Target = runtimeclass.Docker
	}
	n := &node{Options: o, path: runtimeclass.ServicePath}
	for _, p := range n.Proc.Daemons("containerd") {
		owner := runtimeclass.Owner(p)
		// Docker uses the host's containerd, or one of its own.
		uses := n.Target == "" || owner == n.Target || n.Target == runtimeclass.Docker && owner == runtimeclass.Containerd
		if !uses {
			continue
		}
		n.Containerd = cmp.Or(n.Containerd, n.real(p.Program))
		n.path = cmp.Or(p.Environ["PATH"], n.path)
		n.Config = cmp.Or(n.Config, p.Environ[config.EnvFile])
		n.ContainerdConfig = cmp.Or(n.ContainerdConfig, runtimeclass.ConfigFlag(p.Args))
		break
	}
	_, isDistribution := runtimeclass.Distributions[n.Target]
	if p := n.find("containerd", n.path); p != "" && !isDistribution {
		n.Containerd = cmp.Or(n.Containerd, n.real(p))
	}
	n.ContainerdConfig = cmp.Or(n.ContainerdConfig, n.findContainerdConfig())
	n.findDistribution()
	if n.config, n.configErr = config.Find(n.Config); n.configErr != nil {
		n.config = config.Default()
	}
	if n.Containerd != "" {
		n.version, n.versionErr = runtimeclass.DaemonVersion(ctx, runtimeclass.Containerd, n.Containerd)
	}
	n.registered, n.registeredErr = runtimeclass.ReadConfiguration(runtimeclass.Host{Tree: hosttree.Tree{Root: n.Root}, Daemon: n.version}, n.ContainerdConfig)
	n.handlers = maps.Clone(n.registered.Runtimes)
	maps.DeleteFunc(n.handlers, func(_ string, r runtimeclass.Runtime) bool { return !r.Ours() })
	if o.Target == runtimeclass.Docker || o.ContainerdConfig == "" {
		n.readDocker()
	}
	h, err := host.Discover(n.config.Host)
	if n.hostErr = err; err != nil {
		return n
	}
	n.gpus = &h
	n.files, n.hostErr = h.DriverFiles()
	return n
}

// findDistribution finds the programs of a distribution, such as k3s, that is not running.
func (n *node) findDistribution() {
	for _, d := range runtimeclass.Distributions {
		found := d.Program(n.Root)
		if found != "" && n.Containerd == "" && n.ContainerdConfig == filepath.Join(d.Dir, "config.toml") {
			n.Containerd = found
			n.path = filepath.Join("/", strings.TrimPrefix(filepath.Dir(found), n.Root)) + ":" + n.path
		}
	}
}

// readDocker uses Docker's runtimes as the handlers of a host that has no others.
func (n *node) readDocker() {
	n.DockerConfig = cmp.Or(n.DockerConfig, runtimeclass.ConfigFlag(n.daemon("dockerd").Args), runtimeclass.DefaultDockerConfig)
	list, err := runtimeclass.Host{Tree: hosttree.Tree{Root: n.Root}}.DockerRuntimes(n.DockerConfig)
	if n.Target == runtimeclass.Docker || n.Target == "" && len(n.handlers) == 0 && len(list) > 0 {
		n.docker, n.handlers, n.registered, n.registeredErr = true, list, runtimeclass.Configuration{}, err
		n.ContainerdConfig = n.DockerConfig
	}
}

// real returns the path by which this process reaches a path of the node.
func (n *node) real(name string) string { return filepath.Join(n.Root, name) }

func (n *node) exists(name string) bool {
	_, err := os.Stat(n.real(name))
	return err == nil
}

// lookPath finds a program in containerd's PATH, unless it is given by its path.
func (n *node) lookPath(name string) (string, error) {
	if filepath.IsAbs(name) {
		return name, nil
	}
	if p := n.find(name, n.path); p != "" {
		return p, nil
	}
	return "", fmt.Errorf("%s is not in containerd's PATH (%s)", name, n.path)
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

// daemon returns the process of a daemon of this host. If it is not running, only Program is set,
// to what systemd would start, or nothing.
func (n *node) daemon(name string) (p procfs.Process) {
	for _, p := range n.Proc.Daemons(name) {
		p.Program = n.real(p.Program)
		return p
	}
	if found := n.find(name, runtimeclass.ServicePath); found != "" {
		p.Program = n.real(found)
	}
	return p
}

// findContainerdConfig prefers the configuration of containerd itself to that of a distribution.
func (n *node) findContainerdConfig() string {
	if d, ok := runtimeclass.Distributions[n.Target]; ok {
		return filepath.Join(d.Dir, "config.toml")
	}
	for _, name := range slices.Sorted(maps.Keys(runtimeclass.Distributions)) {
		file := filepath.Join(runtimeclass.Distributions[name].Dir, "config.toml")
		if n.Target == "" && n.exists(file) && !n.exists(runtimeclass.DefaultContainerdConfig) {
			return file
		}
	}
	return runtimeclass.DefaultContainerdConfig
}

// programTimeout is long enough for any program, including one that asks NVML.
const programTimeout = 10 * time.Second

func run(ctx context.Context, program string, args ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, programTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.WaitDelay = time.Second
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
