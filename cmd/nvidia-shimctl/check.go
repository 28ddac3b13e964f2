package main

import (
	"cmp"
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	runtimeoptions "github.com/containerd/containerd/api/types/runtimeoptions/v1"
	"github.com/pelletier/go-toml/v2"
	"github.com/urfave/cli/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/cmd/nvidia-shimctl/internal/term"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/device"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/driver"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/view"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/kubelet"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/runtimeclass"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/shim"
)

// Levels of a finding. Only a problem makes the exit status 1.
const (
	levelOK      = "ok"
	levelWarning = "warning"
	levelProblem = "problem"
)

// finding is what a check has to say.
type finding struct {
	Check   string `json:"check"`
	Level   string `json:"level"`
	Message string `json:"message"`
	Fix     string `json:"fix,omitempty"`
}

func fine(format string, args ...any) finding {
	return finding{Level: levelOK, Message: fmt.Sprintf(format, args...)}
}

func warning(fix, format string, args ...any) finding {
	return finding{Level: levelWarning, Message: fmt.Sprintf(format, args...), Fix: fix}
}

func problem(fix, format string, args ...any) finding {
	return finding{Level: levelProblem, Message: fmt.Sprintf(format, args...), Fix: fix}
}

// node is what the checks look at. Tests fill it with fixture directories.
type node struct {
	// root is put before the paths of this host: "/" but in tests.
	root string
	// proc is a procfs with containerd's process in it.
	proc string
	// containerdConfig is below root; dump asks the program for the merged one.
	containerdConfig string
	dump             bool
	// kubeletDir is the kubelet's --root-dir, below root.
	kubeletDir string
	load       func() (*config.Config, error)
	// configName is the shim's configuration, where it is not the default one.
	configName string
	execute    func(ctx context.Context, program string, args ...string) (string, error)

	// What prepare found: containerd's program and PATH, its configuration and the
	// shim's. An error belongs to the check of that name.
	containerd    string
	path          string
	daemon        runtimeclass.Version
	daemonErr     error
	registered    *runtimeclass.Configuration
	registeredErr error
	cfg           *config.Config
	cfgErr        error
}

// checks in the order in which they are printed.
var checks = []struct {
	name string
	run  func(context.Context, *node) []finding
}{
	{"configuration", checkConfiguration},
	{"shim", checkShim},
	{"containerd", checkContainerd},
	{"handler", checkHandler},
	{"cgroup-driver", checkCgroupDriver},
	{"runc", checkRunc},
	{"driver", checkDriver},
	{"nodes", checkNodes},
	{"mig", checkMIGDevices},
	{"prepare", checkPrepare},
	{"libraries", checkLibraries},
	{"probe", checkProbe},
	{"sockets", checkSockets},
	{"state", checkState},
	{"kubelet", checkKubelet},
	{"device-plugin", checkDevicePlugin},
}

func checkCommand() *cli.Command {
	return &cli.Command{
		Name:                      "check",
		OnUsageError:              onUsageError,
		DisableSliceFlagSeparator: true,
		Usage:                     "look for everything that can be wrong on this node, and say how to mend it; nothing is changed",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "containerd-config", Usage: "containerd's configuration `FILE` (default: containerd's, k3s's or RKE2's)"},
			&cli.StringFlag{Name: "containerd", Usage: "containerd's `PROGRAM` (default: that of the running process, or the one in PATH)"},
			&cli.BoolFlag{Name: "dump", Usage: "ask that program for the merged configuration instead of reading the files"},
			&cli.StringFlag{Name: "kubelet-dir", Value: "/var/lib/kubelet", Usage: "the kubelet's `DIR`"},
		},
		Action: func(ctx context.Context, c *cli.Command) error {
			if c.Args().Present() {
				return usage(fmt.Errorf("unexpected argument %q", c.Args().First()))
			}
			n := &node{
				root: "/", proc: "/proc", containerdConfig: c.String("containerd-config"), dump: c.Bool("dump"),
				containerd: c.String("containerd"), kubeletDir: c.String("kubelet-dir"), execute: execute,
			}
			if name := c.String("config"); name != "" {
				n.load, n.configName = loader(c), name
			}
			return reportFindings(c, n.check(ctx))
		},
	}
}

func (n *node) check(ctx context.Context) []finding {
	n.prepare(ctx)
	all := []finding{}
	for _, c := range checks {
		for _, f := range c.run(ctx, n) {
			f.Check = c.name
			all = append(all, f)
		}
	}
	return all
}

func reportFindings(c *cli.Command, all []finding) error {
	wrong := slices.ContainsFunc(all, func(f finding) bool { return f.Level == levelProblem })
	w := c.Root().Writer
	if c.Bool("json") {
		if err := printJSON(w, map[string]any{"ok": !wrong, "findings": all}); err != nil {
			return err
		}
	} else {
		o := term.New(w)
		for _, f := range all {
			printFinding(o, f)
		}
	}
	if wrong {
		return errProblem
	}
	return nil
}

// levelStyles are the colours of the levels on a terminal.
var levelStyles = map[string]term.Style{levelOK: term.Green, levelWarning: term.Yellow, levelProblem: term.Red}

func printFinding(o *term.Output, f finding) {
	const columns = 9
	o.StyledField(f.Level, columns, levelStyles[f.Level], f.Check+": "+f.Message)
	if f.Fix != "" {
		o.Field("", columns, term.Plain, "fix: "+f.Fix)
	}
}

// prepare finds what several checks need.
func (n *node) prepare(ctx context.Context) {
	program, environ, configFile := n.running()
	if n.containerd == "" {
		n.containerd = program
	}
	if n.containerd == "" {
		n.containerd = findDaemon(n.root, targetContainerd)
	}
	n.path = environ["PATH"]
	if n.path == "" {
		n.path = runtimeclass.ServicePath
	}
	if n.load == nil {
		n.load = config.FromEnvironment
		// What counts is the environment that the shim will have: containerd's.
		if name := environ[config.EnvFile]; name != "" {
			n.load = func() (*config.Config, error) { return config.Load(name) }
			n.configName = name
		}
	}
	n.cfg, n.cfgErr = n.load()
	if n.cfgErr != nil {
		n.cfg = config.Default()
	}
	if n.containerd != "" {
		var out string
		if out, n.daemonErr = n.execute(ctx, n.containerd, "--version"); n.daemonErr == nil {
			n.daemon, n.daemonErr = runtimeclass.ParseVersion(out)
		}
	}
	if n.containerdConfig == "" {
		n.containerdConfig = configFile
	}
	if n.containerdConfig == "" {
		n.containerdConfig = n.findConfig()
	}
	n.registered, n.registeredErr = n.readRegistered(ctx)
}

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
	for _, p := range n.processes(func(dir string) bool {
		comm, err := os.ReadFile(filepath.Join(dir, "comm"))
		return err == nil && strings.TrimSpace(string(comm)) == "containerd" && n.administers(dir)
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

func checkConfiguration(_ context.Context, n *node) []finding {
	if n.cfgErr != nil {
		return []finding{problem("mend that file: until then no GPU container starts", "%v", n.cfgErr)}
	}
	return []finding{fine("the shim's configuration is valid; Kubernetes policy: %s", n.cfg.Policy.Kubernetes)}
}

// lookPath finds a program in containerd's PATH.
func (n *node) lookPath(name string) (string, error) {
	for _, dir := range filepath.SplitList(n.path) {
		p := filepath.Join(dir, name)
		st, err := os.Stat(filepath.Join(n.root, p))
		if err == nil && st.Mode().IsRegular() && st.Mode()&0o111 != 0 {
			return p, nil
		}
	}
	return "", fmt.Errorf("%s is not in containerd's PATH (%s)", name, n.path)
}

func checkShim(_ context.Context, n *node) []finding {
	p, err := n.lookPath(runtimeclass.ShimName)
	if err != nil {
		// A handler with runtime_path does not need it there.
		if n.registeredErr == nil {
			for _, r := range n.registered.Runtimes {
				if r.Ours() && filepath.IsAbs(r.Path) {
					return []finding{n.checkProgram(r.Path)}
				}
			}
		}
		return []finding{problem("nvidia-shimctl install, or put the program into one of these directories", "%v", err)}
	}
	return []finding{n.checkProgram(p)}
}

// checkProgram looks at a shim: a static program for this machine that root alone can
// replace.
func (n *node) checkProgram(p string) finding {
	const fix = "nvidia-shimctl install"
	real := filepath.Join(n.root, p)
	st, err := os.Stat(real)
	if err != nil {
		return problem(fix, "%v", err)
	}
	if st.Mode()&0o111 == 0 {
		return problem("chmod 0755 "+p, "%s is not executable (mode %04o)", p, st.Mode().Perm())
	}
	if st.Mode()&0o022 != 0 {
		return problem("chmod go-w "+p, "%s can be written by others than root (mode %04o)", p, st.Mode().Perm())
	}
	f, err := elf.Open(real)
	if err != nil {
		return problem(fix, "%s is not a program: %v", p, err)
	}
	// Reading needs no error of Close.
	defer func() { _ = f.Close() }()
	self, err := elf.Open("/proc/self/exe")
	if err == nil {
		defer func() { _ = self.Close() }()
		if self.Machine != f.Machine {
			return problem(fix, "%s is a program for %v, this host is %v", p, f.Machine, self.Machine)
		}
	}
	for _, s := range f.Progs {
		if s.Type == elf.PT_INTERP {
			return problem("install a release, or build it with CGO_ENABLED=0", "%s is not static: it would run the host's libraries in every pod's shim", p)
		}
	}
	return fine("%s is in containerd's reach", p)
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

// floor is the first safe version of a release line.
type floor struct{ major, minor, patch int }

// belowFloor compares a version with the floor of its line; lines after the last are
// safe, those before the first are not.
func belowFloor(name string, v runtimeclass.Version, floors []floor) finding {
	texts := make([]string, len(floors))
	for i, f := range floors {
		texts[i] = fmt.Sprintf("%d.%d.%d", f.major, f.minor, f.patch)
	}
	safe := strings.Join(texts, ", ")
	for i := len(floors) - 1; i >= 0; i-- {
		f := floors[i]
		// A pre-release of a line is not its release.
		inLine := v.Major == f.major && v.Minor == f.minor
		if inLine && v.AtLeast(f.major, f.minor, f.patch) || i == len(floors)-1 && !inLine && v.AtLeast(f.major, f.minor+1, 0) {
			return fine("%s %s", name, v)
		}
		if inLine {
			break
		}
	}
	message := fmt.Sprintf("%s %s has known ways out of a container; safe are %s and later", name, v, safe)
	fix := "update " + name
	if v.Distribution() {
		return warning("see whether the distribution's package carries the fixes, or "+fix, "%s", message)
	}
	return problem(fix, "%s", message)
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

func checkRunc(ctx context.Context, n *node) []finding {
	names := map[string]bool{}
	if n.registeredErr == nil {
		for _, r := range n.registered.Runtimes {
			if !r.Ours() {
				continue
			}
			name, _ := r.Options["BinaryName"].(string)
			if name == "" {
				name = "runc"
			}
			names[name] = true
		}
	}
	if len(names) == 0 {
		names["runc"] = true
	}
	var out []finding
	for _, name := range slices.Sorted(maps.Keys(names)) {
		out = append(out, n.checkRuntimeProgram(ctx, name))
	}
	return out
}

func (n *node) checkRuntimeProgram(ctx context.Context, name string) finding {
	p := name
	if !filepath.IsAbs(name) {
		var err error
		if p, err = n.lookPath(name); err != nil {
			return problem("install "+name, "%v: no container can start", err)
		}
	}
	text, err := n.execute(ctx, filepath.Join(n.root, p), "--version")
	if err != nil {
		return problem("install a working "+name, "%v", err)
	}
	first, _, _ := strings.Cut(text, "\n")
	if !strings.HasPrefix(first, "runc ") {
		return fine("%s", first)
	}
	v, err := runtimeclass.ParseVersion(first)
	if err != nil {
		return problem("install a released runc", "%v", err)
	}
	return belowFloor("runc", v, []floor{{1, 3, 6}, {1, 4, 3}, {1, 5, 0}})
}

// host looks at the GPUs and the driver's files. The inventory is there where only the
// files cannot be looked for.
func (n *node) host() (*device.Inventory, *driver.Files, error) {
	return gpuinject.FindHost(n.cfg.Host)
}

func checkDriver(_ context.Context, n *node) []finding {
	inv, _, err := n.host()
	if inv == nil {
		return []finding{problem("nvidia-shimctl prepare --load-modules, or keep GPU pods off this node by a node selector", "%v", err)}
	}
	if len(inv.GPUs) == 0 {
		return []finding{problem("look at the kernel's log (dmesg) for NVRM", "driver %s is loaded but has no usable GPU (%d excluded)", inv.DriverVersion, len(inv.Excluded))}
	}
	if inv.Platform != "" {
		return []finding{fine("the driver of %s", inv.Platform)}
	}
	return []finding{fine("driver %s with %d GPUs", inv.DriverVersion, len(inv.GPUs))}
}

func checkLibraries(_ context.Context, n *node) []finding {
	inv, files, err := n.host()
	if inv == nil {
		return nil
	}
	if err == nil {
		err = files.Check(n.cfg.Container.DefaultCapabilities)
	}
	if err != nil {
		return []finding{problem("install the driver's libraries in the version of the loaded kernel module, or reload the module", "%v", err)}
	}
	out := []finding{fine("%d driver libraries of version %s", len(files.Libraries), cmp.Or(inv.DriverVersion, "the platform"))}
	for _, r := range files.Refused {
		out = append(out, warning("reinstall the driver's package", "%s is not given to containers: it %s", r.Path, r.Reason))
	}
	return out
}

func checkState(_ context.Context, n *node) []finding {
	dir := n.cfg.Host.StateDir
	if _, err := os.Lstat(dir); errors.Is(err, fs.ErrNotExist) {
		return []finding{fine("%s is made by the first GPU container", dir)}
	}
	if _, err := view.OpenState(dir); err != nil {
		return []finding{problem("chown it to root and chmod it 0700, or remove it when no GPU container runs", "%v", err)}
	}
	return []finding{fine("%s belongs to root alone", dir)}
}

func checkKubelet(ctx context.Context, n *node) []finding {
	name := n.cfg.Policy.KubeletSocket
	socket := filepath.Join(n.root, name)
	const ofRootDir = "let policy.kubelet-socket name pod-resources/kubelet.sock in its --root-dir"
	if _, err := os.Stat(socket); err != nil {
		if _, err := os.Stat(filepath.Join(n.root, n.kubeletDir)); errors.Is(err, fs.ErrNotExist) {
			return []finding{fine("there is no %s: not a Kubernetes node", n.kubeletDir)}
		}
		// Without a socket the shim takes the node for one outside Kubernetes.
		return []finding{warning("start the kubelet, or "+ofRootDir,
			"there is a kubelet's %s, but no socket %s: containers are not held to what the kubelet allocated", n.kubeletDir, name)}
	}
	// The shim's probe waits no longer.
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	pods, err := kubelet.Ping(ctx, socket)
	if err != nil {
		return []finding{problem("see whether the kubelet runs (systemctl status kubelet) and what its log says, or "+ofRootDir,
			"the kubelet does not answer at %s: %s", name, strings.ReplaceAll(err.Error(), "\n", " "))}
	}
	return []finding{fine("the kubelet answers at %s, with %d pods", name, pods)}
}
