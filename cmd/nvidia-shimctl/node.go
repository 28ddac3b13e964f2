package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/urfave/cli/v3"
	"golang.org/x/sys/unix"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/atomicfile"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/cdispec"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/check"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/kubeapi"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/prepare"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/procfs"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/serve"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/version"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/runtimeclass"
)

// Labels of a node. Its operator sets the last one.
const (
	readyLabel   = "nvidia-shim.io/ready"
	versionLabel = "nvidia-shim.io/version"
	removeLabel  = "nvidia-shim.io/remove"
)

func nodeCommand() *cli.Command {
	return &cli.Command{
		Name:  "node",
		Usage: "keep a Kubernetes node installed, from a privileged pod",
		Description: "It installs, runs check, sets the labels " + readyLabel + " and " + versionLabel + " of the node, and repairs what changes. " +
			"If check finds a problem after a change, the files come back as they were. The label " + removeLabel + "=true removes everything. " +
			"The pod needs hostPID and the host's root directory.",
		Flags: append(daemonFlags(), handlerFlag(), replaceFlag(),
			&cli.StringFlag{Name: "host-root", Value: "/host", Usage: "`DIR` of the pod with the host's root"},
			&cli.StringFlag{Name: "node-name", Sources: cli.EnvVars("NODE_NAME"), Usage: "`NAME` of the node with the labels; none without it"},
			&cli.DurationFlag{Name: "interval", Value: time.Minute, Usage: "`TIME` between two rounds"},
			&cli.StringFlag{Name: "listen", Usage: "also serve what the command serve does, on `ADDRESS`"},
			&cli.Uint16Flag{Name: "ready-port", Usage: "`PORT` on which GET /readyz is 200 if the last round succeeded, else 503"},
			&cli.BoolFlag{Name: "once", Usage: "end after the first round"},
			&cli.BoolFlag{Name: "uninstall", Usage: "remove everything, and keep it removed"},
			// uninstallFrom reads it.
			&cli.BoolFlag{Name: "restart", Value: true, Hidden: true},
		),
		Action: keepNode,
	}
}

// nodeKeeper keeps one node as it is meant to be.
type nodeKeeper struct {
	c    *cli.Command
	host runtimeclass.Host
	o    runtimeclass.Options
	api  *kubeapi.Node // nil without a cluster
	// refused is the change after which check found a problem, and findings are those that were
	// printed last.
	refused, findings string
	ready             atomic.Bool // the last round succeeded
}

func keepNode(ctx context.Context, c *cli.Command) error {
	if os.Geteuid() != 0 {
		return errors.New("only root can install a node")
	}
	if c.Duration("interval") <= 0 {
		return usage(errors.New("--interval has to be positive"))
	}
	if c.String("target") == kind {
		return usage(errors.New("--target kind is no daemon of a host: a node of kind has containerd"))
	}
	k := nodeKeeper{c: c, host: runtimeclass.Host{Root: "/"}}
	programs, account, err := enterHost(c.String("host-root"))
	if err == nil {
		k.o, err = installOptions(c)
	}
	if err != nil {
		return err
	}
	k.o.Programs, k.o.Registration.BinDir = programs, filepath.Clean(c.String("bin-dir"))
	if err := k.o.Registration.Validate(); err != nil {
		return usage(err)
	}
	if name := c.String("node-name"); name != "" {
		node, err := kubeapi.InCluster(name, account)
		if err != nil {
			return usage(fmt.Errorf("--node-name: %w", err))
		}
		k.api = &node
	}
	ctx, stop := signal.NotifyContext(ctx, unix.SIGTERM, unix.SIGINT)
	defer stop()
	// The image has no C library, so that NVML is asked by what was installed.
	askingProgram = filepath.Join(k.o.Registration.BinDir, runtimeclass.CtlName)
	served, err := k.serve(ctx)
	if err != nil {
		return err
	}
	for {
		err := k.round(ctx)
		k.ready.Store(err == nil)
		if ctx.Err() != nil {
			return nil // a change that was begun is carried out
		}
		if c.Bool("once") {
			return err
		}
		if err != nil && !errors.Is(err, errProblem) {
			fmt.Fprintf(c.Root().ErrWriter, "nvidia-shimctl: %v\n", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case err := <-served:
			return err
		case <-time.After(c.Duration("interval")):
		}
	}
}

// serve starts the servers that the flags ask for. The channel has the error of one that fails.
func (k *nodeKeeper) serve(ctx context.Context) (<-chan error, error) {
	served := make(chan error, 2)
	if k.c.IsSet("listen") {
		listener, handler, err := listenToServe(ctx, k.c)
		if err != nil {
			return nil, err
		}
		go func() { served <- serve.Run(ctx, listener, handler) }()
	}
	port := k.c.Uint16("ready-port")
	if port == 0 {
		return served, nil
	}
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", fmt.Sprintf(":%d", port))
	if err != nil {
		return nil, err
	}
	go func() { served <- serve.Run(ctx, listener, http.HandlerFunc(k.serveReady)) }()
	return served, nil
}

// serveReady answers the pod's readiness probe: a rolling update waits for it.
func (k *nodeKeeper) serveReady(w http.ResponseWriter, r *http.Request) {
	switch {
	case r.URL.Path != "/readyz":
		http.NotFound(w, r)
	case !k.ready.Load():
		http.Error(w, "not ready", http.StatusServiceUnavailable)
	default:
		fmt.Fprintln(w, "ok")
	}
}

// enterHost makes the host's root that of this process. It returns the directories of this program
// and of the service account, which are outside of it then.
func enterHost(root string) (programs, account string, err error) {
	self, err := os.Executable()
	if err != nil {
		return "", "", err
	}
	open := func(dir string) (string, error) {
		fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		return fmt.Sprintf("/proc/self/fd/%d", fd), err
	}
	if programs, err = open(filepath.Dir(self)); err != nil {
		return "", "", err
	}
	if account, err = open(kubeapi.ServiceAccount); err != nil {
		account = kubeapi.ServiceAccount // and then no request is possible
	}
	if err := os.Chdir(root); err != nil {
		return "", "", usage(fmt.Errorf("--host-root: %w", err))
	}
	if err := unix.Chroot("."); err != nil {
		return "", "", fmt.Errorf("--host-root %s: %w", root, err)
	}
	if procfs.Host.InOtherPIDNamespace(1) {
		return "", "", usage(fmt.Errorf("--host-root %s is not the root of the host with its /proc, or the pod lacks hostPID", root))
	}
	// systemctl believes that the host's root is not that of systemd.
	return programs, account, os.Setenv("SYSTEMD_IGNORE_CHROOT", "1")
}

// round brings the node into the state that its labels and the command line ask for.
func (k *nodeKeeper) round(ctx context.Context) error {
	var labels map[string]string
	if k.api != nil {
		var err error
		if labels, err = k.api.Labels(ctx); err != nil {
			return err
		}
	}
	now := any(labels[versionLabel])
	if now == "" {
		now = nil
	}
	if k.c.Bool("uninstall") || labels[removeLabel] == "true" {
		// The version goes last: without it nothing is left to remove.
		if err := errors.Join(k.setLabels(ctx, labels, nil, now), k.remove(ctx)); err != nil {
			return err
		}
		return k.setLabels(ctx, labels, nil, nil)
	}
	installed, findings, err := k.install(ctx)
	if ctx.Err() != nil {
		return nil // the next pod goes on
	}
	k.print(findings)
	ready := len(problems(findings)) == 0
	if installed {
		now = version.Version
	}
	err = errors.Join(err, k.setLabels(ctx, labels, fmt.Sprint(ready), now))
	if err == nil && !ready {
		return errProblem
	}
	return err
}

// setLabels sets the labels of the node, if it has others; nil removes one.
func (k *nodeKeeper) setLabels(ctx context.Context, labels map[string]string, ready, version any) error {
	want := map[string]any{readyLabel: ready, versionLabel: version}
	for name, value := range want {
		have, ok := labels[name]
		if ok && have == value || !ok && value == nil {
			delete(want, name)
		}
	}
	if k.api == nil || len(want) == 0 {
		return nil
	}
	return k.api.SetLabels(ctx, want)
}

// pendingRestart has a line for each registration, from before the daemon's configuration changes
// until the daemon has read it. The file is gone after a boot.
const pendingRestart = "/run/nvidia-shim-node.restart"

func pendingLine(o runtimeclass.Options) string { return o.Target + " " + o.ConfigFile + "\n" }

func pendingLines() []string {
	text, _ := os.ReadFile(pendingRestart)
	return slices.Collect(strings.Lines(string(text)))
}

// setPending adds a line to pendingRestart, or removes it.
func setPending(line string, pending bool) error {
	runtimeclass.Host{}.RemoveTemporary(filepath.Dir(pendingRestart))
	lines := slices.DeleteFunc(pendingLines(), func(l string) bool { return l == line })
	if pending {
		lines = append(lines, line)
	}
	if len(lines) == 0 {
		return os.RemoveAll(pendingRestart)
	}
	return atomicfile.Write(pendingRestart, []byte(strings.Join(lines, "")), 0o600)
}

// install installs what is missing or different, and reports whether this version is installed. A
// node with problems that an installation does not solve stays as it is.
func (k *nodeKeeper) install(ctx context.Context) (installed bool, _ []check.Finding, _ error) {
	if err := k.prepare(ctx); err != nil {
		fmt.Fprintf(k.c.Root().ErrWriter, "nvidia-shimctl: prepare: %v\n", err)
	}
	// The configuration of a daemon that does not run is not known.
	found := runtimeclass.Find(k.host, procfs.Host, k.c.String("target"))
	if len(found) == 1 && found[0].Program == "" && slices.Contains([]string{runtimeclass.Containerd, runtimeclass.Docker}, found[0].Target) {
		return false, []check.Finding{{Check: "install", Level: check.Problem, Message: found[0].Target + " does not run", Fix: "start it"}}, nil
	}
	o := k.o
	plan, _, err := planInstall(ctx, k.c, k.host, &o)
	findings := k.check(ctx, o)
	if err != nil {
		return false, append(findings, check.Finding{Check: "install", Level: check.Problem, Message: err.Error(), Fix: "nvidia-shimctl node --help"}), nil
	}
	line := pendingLine(o)
	pending := slices.Contains(pendingLines(), line)
	if !pending && len(plan.Written())+len(plan.Removed()) == 0 {
		return true, findings, nil
	}
	lasting := slices.DeleteFunc(problems(findings), func(f check.Finding) bool {
		return slices.Contains([]string{"shim", "handler", "probe", "kubelet"}, f.Check)
	})
	change := fmt.Sprintf("%q %q %q", plan.Written(), plan.Diff(), problems(findings))
	switch {
	case len(lasting) > 0:
		return false, findings, fmt.Errorf("not installed: %s: %s", lasting[0].Check, lasting[0].Message)
	case change == k.refused && pending: // the restart failed, after the files had come back
		plan.Restart.Verb = "restart"
		return false, findings, k.restart(ctx, line, plan)
	case change == k.refused:
		return false, findings, nil
	}
	undo, err := plan.Undo()
	if err != nil {
		return false, findings, err
	}
	if err = k.carryOut(ctx, line, plan); err == nil {
		findings, err = k.settle(ctx, o)
	}
	if err == nil || ctx.Err() != nil {
		return true, findings, err
	}
	k.refused = change
	k.print(findings)
	fmt.Fprintln(k.c.Root().ErrWriter, "nvidia-shimctl: the files come back as they were")
	undone := k.carryOut(ctx, line, undo)
	if undone == nil {
		_, undone = undo.RemovePrograms(procfs.Host)
	}
	return false, k.check(ctx, o), errors.Join(err, undone)
}

// carryOut makes the changes of a plan, and restarts the daemon if its configuration changes. No
// signal interrupts that.
func (k *nodeKeeper) carryOut(ctx context.Context, line string, plan runtimeclass.Plan) error {
	if plan.Changed() {
		if err := setPending(line, true); err != nil {
			return err
		}
	}
	if err := carryOut(k.c, plan, nil); err != nil {
		return err
	}
	if !slices.Contains(pendingLines(), line) {
		return nil
	}
	return k.restart(ctx, line, plan)
}

func (k *nodeKeeper) restart(ctx context.Context, line string, plan runtimeclass.Plan) error {
	if err := plan.Restart.Run(context.WithoutCancel(ctx), k.c.Root().ErrWriter); err != nil {
		return err
	}
	return setPending(line, false)
}

// settle runs check after a change. A distribution makes its configuration after it started.
func (k *nodeKeeper) settle(ctx context.Context, o runtimeclass.Options) ([]check.Finding, error) {
	_, late := runtimeclass.Distributions[o.Target]
	for start := time.Now(); ; {
		findings := k.check(ctx, o)
		wrong := problems(findings)
		if len(wrong) == 0 {
			return findings, nil
		}
		if !late || ctx.Err() != nil || time.Since(start) > time.Minute {
			return findings, fmt.Errorf("check after the installation: %s: %s", wrong[0].Check, wrong[0].Message)
		}
		select {
		case <-ctx.Done():
		case <-time.After(2 * time.Second):
		}
	}
}

// prepare makes the device nodes and the CDI specification of a driver that was loaded meanwhile.
func (k *nodeKeeper) prepare(ctx context.Context) error {
	cfg, err := loader(k.c)()
	if err != nil {
		return err
	}
	if _, err := prepare.Run(ctx, prepare.Options{Host: cfg.Host, LoadModules: cfg.Host.LoadKernelModules}); err != nil {
		return err
	}
	return cdispec.Refresh(cdiFile, planner(k.c))
}

func (k *nodeKeeper) check(ctx context.Context, o runtimeclass.Options) []check.Finding {
	options := check.Options{
		Root: "/", Proc: procfs.Host, Config: k.c.String("config"), ContainerdConfig: o.ConfigFile, Target: o.Target,
		CDI: func() ([]byte, error) { return cdispec.Text(planner(k.c)) },
	}
	if o.Target == runtimeclass.Docker {
		options.ContainerdConfig, options.DockerConfig = "", o.ConfigFile
	}
	return check.Node(ctx, options)
}

func problems(findings []check.Finding) []check.Finding {
	return slices.DeleteFunc(slices.Clone(findings), func(f check.Finding) bool { return f.Level != check.Problem })
}

// print prints what is wrong, if it is not what was printed last.
func (k *nodeKeeper) print(findings []check.Finding) {
	var b strings.Builder
	for _, f := range findings {
		if f.Level != check.OK {
			fmt.Fprintf(&b, "%s: %s: %s; fix: %s\n", f.Level, f.Check, f.Message, f.Fix)
		}
	}
	if text := b.String(); text != k.findings {
		k.findings = text
		fmt.Fprint(k.c.Root().Writer, text)
	}
}

// remove undoes the installation for every daemon.
func (k *nodeKeeper) remove(ctx context.Context) error {
	ctx = context.WithoutCancel(ctx)
	list, err := runtimeclass.Registered(k.host, k.o)
	for _, o := range list {
		if err == nil {
			err = setPending(pendingLine(o), true)
		}
	}
	lines := pendingLines()
	if err == nil && len(lines) == 0 && k.host.Exists(runtimeclass.RecordPath) { // the programs are left
		err = uninstallFrom(ctx, k.c, k.host, k.o, false)
	}
	for _, line := range lines {
		o := k.o
		o.Target, o.ConfigFile, _ = strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		if err == nil {
			err = uninstallFrom(ctx, k.c, k.host, o, true)
		}
		if err == nil {
			err = setPending(line, false)
		}
	}
	if err == nil && k.host.Exists(runtimeclass.RecordPath) {
		err = errors.New("the programs stay until the containers that run with them end")
	}
	return err
}
