package main

import (
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	runtimeoptions "github.com/containerd/containerd/api/types/runtimeoptions/v1"
	"github.com/pelletier/go-toml/v2"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/runtimeclass"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/shim"
)

// findConfig prefers the configuration of containerd itself.
func (n *node) findConfig() string {
	candidates := []string{runtimeclass.DefaultContainerdConfig}
	for _, name := range slices.Sorted(maps.Keys(runtimeclass.Distributions)) {
		candidates = append(candidates, filepath.Join(runtimeclass.Distributions[name].Dir, "config.toml"))
	}
	for _, name := range candidates {
		if _, err := os.Stat(filepath.Join(n.root, name)); err == nil {
			return name
		}
	}
	return candidates[0]
}

func (n *node) readRegistered(ctx context.Context) (*runtimeclass.Configuration, error) {
	if !n.dump {
		return runtimeclass.ReadConfiguration(runtimeclass.Host{Root: n.root, Daemon: n.daemon}, n.containerdConfig)
	}
	if n.containerd == "" {
		return nil, errors.New("no containerd was found to ask for its configuration")
	}
	out, err := n.execute(ctx, n.containerd, "--config", filepath.Join(n.root, n.containerdConfig), "config", "dump")
	if err != nil {
		return nil, err
	}
	return runtimeclass.ParseConfiguration([]byte(out))
}

// running finds containerd's process: the file that it executes, its environment, and
// the configuration that its command line names. The file is executed in turn, and the
// environment says where runc is.
func (n *node) running() (program string, environ map[string]string, configFile string) {
	for _, p := range n.proc.processes(func(dir string) bool {
		comm, err := os.ReadFile(filepath.Join(dir, "comm"))
		return err == nil && strings.TrimSpace(string(comm)) == "containerd" && n.proc.administers(dir)
	}) {
		return p.program, p.environ, namedConfig(p.args)
	}
	return "", nil, ""
}

// namedConfig is the value of --config on containerd's command line, if absolute.
func namedConfig(args []string) string {
	for i, a := range args {
		name, value, found := strings.Cut(a, "=")
		if name != "--config" && name != "-config" && name != "-c" && name != "--c" {
			continue
		}
		if !found && i+1 < len(args) {
			value = args[i+1]
		}
		if filepath.IsAbs(value) {
			return value
		}
	}
	return ""
}

func checkContainerd(_ context.Context, n *node) []finding {
	if n.containerd == "" {
		return []finding{warning("name it with --containerd", "no containerd was found, running or in PATH: its version is not checked")}
	}
	if n.daemonErr != nil {
		return []finding{problem("mend "+n.containerd, "%v", n.daemonErr)}
	}
	return []finding{belowFloor("containerd", n.daemon, []floor{{1, 7, 33}, {2, 0, 10}, {2, 1, 9}, {2, 2, 5}, {2, 3, 2}})}
}

func checkHandler(_ context.Context, n *node) []finding {
	if n.registeredErr != nil {
		return []finding{problem("mend containerd's configuration: containerd does not start with it", "%v", n.registeredErr)}
	}
	var out []finding
	if n.registered.CRIDisabled {
		out = append(out, warning("remove cri from disabled_plugins if this is a Kubernetes node", "CRI is switched off in %s", n.containerdConfig))
	}
	ours := 0
	for _, name := range slices.Sorted(maps.Keys(n.registered.Runtimes)) {
		r := n.registered.Runtimes[name]
		if !r.Ours() {
			continue
		}
		ours++
		before := len(out)
		out = append(out, n.checkOptions(name, r)...)
		if len(out) == before {
			out = append(out, fine("the handler %q starts this shim", name))
		}
	}
	if ours == 0 {
		out = append(out, problem("nvidia-shimctl install, then restart containerd", "no runtime handler in %s starts this shim", n.containerdConfig))
	}
	return out
}

// checkOptions reads a handler's options as the shim will.
func (n *node) checkOptions(name string, r runtimeclass.Runtime) []finding {
	var out []finding
	if filepath.IsAbs(r.Path) {
		if f := n.checkProgram(r.Path); f.Level != levelOK {
			out = append(out, f)
		}
	}
	if r.Type == runtimeclass.RuntimeType {
		const byPath = "nvidia-shimctl install chooses the form for this containerd"
		switch {
		case r.Options != nil:
			out = append(out, warning("remove the options table: the shim needs none", "handler %q has an options table: pods with hostUsers: false fail with it", name))
		case n.daemon.Known() && !n.daemon.AtLeast(2, 4, 0):
			out = append(out, warning(byPath, "handler %q: containerd %s cannot run pods with hostUsers: false by this runtime_type", name, n.daemon))
		}
	}
	_, err := translate(r)
	if err != nil {
		out = append(out, problem("correct that key in "+n.containerdConfig, "handler %q: %v", name, err))
	}
	if binary, _ := r.Options["BinaryName"].(string); strings.HasPrefix(filepath.Base(binary), "nvidia-container-runtime") {
		out = append(out, problem("remove BinaryName from the handler's options", "handler %q runs %s below this shim: GPUs would be injected twice", name, binary))
	}
	own, _ := r.Options["SystemdCgroup"].(bool)
	if driver := n.registered.SystemdCgroup(); driver != nil && r.Options["SystemdCgroup"] != nil && own != *driver {
		out = append(out, warning("give both the same value", "handler %q has SystemdCgroup = %t, the default runtime %q has %t; the shim follows the form of the cgroup path", name, own, n.registered.Default, *driver))
	}
	return out
}

// translate reads a handler's options table as the shim will.
func translate(r runtimeclass.Runtime) (shim.Options, error) {
	options := maps.Clone(r.Options)
	// `containerd config dump` writes every key.
	maps.DeleteFunc(options, func(_ string, v any) bool { return v == "" || v == int64(0) || v == false })
	body, err := toml.Marshal(options)
	if err != nil {
		return shim.Options{}, err
	}
	value, err := proto.Marshal(&runtimeoptions.Options{ConfigBody: body})
	if err != nil {
		return shim.Options{}, err
	}
	return shim.Translate(&anypb.Any{TypeUrl: "runtimeoptions.v1.Options", Value: value})
}

func checkCgroupDriver(_ context.Context, n *node) []finding {
	if n.registeredErr != nil {
		return nil
	}
	_, err := os.Stat(filepath.Join(n.root, "run/systemd/system"))
	systemd := err == nil
	set := n.registered.SystemdCgroup()
	uses := set != nil && *set
	switch {
	case systemd && !uses:
		return []finding{warning("set SystemdCgroup = true in the options of the default runtime if the kubelet uses the systemd driver",
			"systemd runs on this host, but the default runtime %q does not use its cgroup driver", n.registered.Default)}
	case !systemd && uses:
		return []finding{problem("set SystemdCgroup = false in the options of the default runtime",
			"the default runtime %q uses the systemd cgroup driver, but systemd does not run on this host", n.registered.Default)}
	case uses:
		return []finding{fine("systemd")}
	}
	return []finding{fine("cgroupfs")}
}
