package main

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/urfave/cli/v3"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/term"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/runtimeclass"
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
	proc procfs
	// containerdConfig is below root; dump asks the program for the merged one.
	containerdConfig string
	dump             bool
	// kubeletDir is the kubelet's --root-dir, below root.
	kubeletDir string
	load       func() (*config.Config, error)
	// configName is the shim's configuration, where it is not the default one.
	configName string
	execute    func(ctx context.Context, program string, args ...string) (string, error)

	// What discover found: containerd's program and PATH, its configuration and the
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
		Name:  "check",
		Usage: "look for everything that can be wrong on this node, and say how to mend it; nothing is changed",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "containerd-config", Usage: "containerd's configuration `FILE` (default: containerd's, k3s's or RKE2's)"},
			&cli.StringFlag{Name: "containerd", Usage: "containerd's `PROGRAM` (default: that of the running process, or the one in PATH)"},
			&cli.BoolFlag{Name: "dump", Usage: "ask that program for the merged configuration instead of reading the files"},
			&cli.StringFlag{Name: "kubelet-dir", Value: "/var/lib/kubelet", Usage: "the kubelet's `DIR`"},
		},
		Action: func(ctx context.Context, c *cli.Command) error {
			if err := noArguments(c); err != nil {
				return err
			}
			n := &node{
				root: "/", proc: hostProcfs, containerdConfig: c.String("containerd-config"), dump: c.Bool("dump"),
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
	n.discover(ctx)
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

// discover finds what several checks need.
func (n *node) discover(ctx context.Context) {
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

func checkConfiguration(_ context.Context, n *node) []finding {
	if n.cfgErr != nil {
		return []finding{problem("mend that file: until then no GPU container starts", "%v", n.cfgErr)}
	}
	return []finding{fine("the shim's configuration is valid; Kubernetes policy: %s", n.cfg.Policy.Kubernetes)}
}

func oneLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", " ") }
