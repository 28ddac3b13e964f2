package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/atomicfile"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/cdispec"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/check"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/cmdline"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/hosttree"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/install"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/prepare"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/preview"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/procfs"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/runtimeclass"
)

// plannedConfig has the shim's configuration of a plan while it is checked.
const plannedConfig = "/run/nvidia-shim-node.toml"

// install installs what is missing or different, and reports whether this version is installed. A
// node with problems that an installation cannot solve stays as it is.
func (k *Keeper) install(ctx context.Context) (installed bool, _ []check.Finding, _ error) {
	if err := k.prepare(ctx); err != nil {
		fmt.Fprintf(k.Installer.Err, "nvidia-shimctl: prepare: %v\n", err)
	}
	in, target := k.Installer, ""
	if in.TargetNamed {
		target = in.Target
	}
	// The configuration of a daemon that is not running is unknown.
	found := runtimeclass.Find(k.Installer.Host, procfs.Host, target)
	if len(found) == 1 && !found[0].Runs && !runtimeclass.DaemonOf(found[0].Target).Generated {
		return false, []check.Finding{{Check: "install", Level: check.Problem, Message: found[0].Target + " does not run", Fix: "start it"}}, nil
	}
	plan, err := k.plan(ctx, &in)
	o := in.Options
	findings := k.checkPlanned(ctx, plan, o)
	if err != nil {
		return false, append(findings, check.Finding{Check: "install", Level: check.Problem, Message: cmdline.Plain(err), Fix: "nvidia-shimctl node --help"}), nil
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
	case change == k.refused && pending: // the restart failed after the files were restored
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
	if errors.Is(err, runtimeclass.ErrNothingChanged) { // the daemon need not read anything again
		return false, findings, errors.Join(err, setPending(line, pending))
	}
	k.print(findings)
	fmt.Fprintln(k.Installer.Err, "nvidia-shimctl: restoring the files")
	undone := k.carryOut(ctx, line, undo)
	if undone == nil {
		_, undone = undo.RemovePrograms(procfs.Host)
	}
	return false, k.check(ctx, o), errors.Join(err, undone)
}

// plan completes the options and plans the installation.
func (k *Keeper) plan(ctx context.Context, in *install.Installer) (runtimeclass.Plan, error) {
	if err := k.configure(in); err != nil {
		return runtimeclass.Plan{}, err
	}
	plan, _, err := in.Plan(ctx)
	return plan, err
}

// carryOut makes the changes of a plan, and restarts the daemon if its configuration changes. No
// signal interrupts that.
func (k *Keeper) carryOut(ctx context.Context, line string, plan runtimeclass.Plan) error {
	if plan.Changed() {
		if err := setPending(line, true); err != nil {
			return err
		}
	}
	if err := k.Installer.CarryOut(plan, nil); err != nil {
		return err
	}
	if !slices.Contains(pendingLines(), line) {
		return nil
	}
	return k.restart(ctx, line, plan)
}

func (k *Keeper) restart(ctx context.Context, line string, plan runtimeclass.Plan) error {
	if err := plan.Restart.Run(context.WithoutCancel(ctx), k.Installer.Err); err != nil {
		return err
	}
	return setPending(line, false)
}

// settle runs check after a change. A distribution generates its configuration after it has
// started, so settle waits for it.
func (k *Keeper) settle(ctx context.Context, o runtimeclass.Options) ([]check.Finding, error) {
	late := runtimeclass.DaemonOf(o.Target).Generated
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

// prepare creates the device nodes and the CDI specification of a driver that was loaded in the
// meantime.
func (k *Keeper) prepare(ctx context.Context) error {
	cfg, err := k.Planner.Config()
	if err != nil {
		return err
	}
	if _, err := prepare.Run(ctx, prepare.Options{Host: cfg.Host, LoadModules: cfg.Host.LoadKernelModules}); err != nil {
		return err
	}
	return cdispec.Refresh(k.CDIFile, k.Planner)
}

// checkPlanned runs check with the shim's configuration that a plan makes: the present one may name
// no driver.
func (k *Keeper) checkPlanned(ctx context.Context, plan runtimeclass.Plan, o runtimeclass.Options) []check.Finding {
	i := slices.IndexFunc(plan.Changes, func(c hosttree.Change) bool { return c.Path == o.ShimConfig && c.Differs() })
	if i < 0 {
		return k.check(ctx, o)
	}
	defer func() { _ = os.Remove(plannedConfig) }()
	if err := atomicfile.Write(plannedConfig, plan.Changes[i].After, 0o600); err != nil {
		return []check.Finding{{Check: "install", Level: check.Problem, Message: err.Error(), Fix: "make /run writable"}}
	}
	planner := k.Planner
	planner.Config = func() (*config.Config, error) {
		cfg, err := config.Load(plannedConfig)
		if err == nil {
			cfg.Host.ReadOnlyState = true
		}
		return cfg, err
	}
	return checkWith(ctx, o, plannedConfig, planner)
}

func (k *Keeper) check(ctx context.Context, o runtimeclass.Options) []check.Finding {
	return checkWith(ctx, o, k.Config, k.Planner)
}

func checkWith(ctx context.Context, o runtimeclass.Options, shimConfig string, p preview.Planner) []check.Finding {
	return check.Node(ctx, check.Options{
		Root: "/", Proc: procfs.Host, Config: shimConfig, Target: o.Target, Configs: map[string]string{o.Target: o.ConfigFile},
		CDI: func() ([]byte, error) { return cdispec.Text(p) },
	})
}

func problems(findings []check.Finding) []check.Finding {
	return slices.DeleteFunc(slices.Clone(findings), func(f check.Finding) bool { return f.Level != check.Problem })
}

// print prints the findings that are not OK, if they differ from those printed last.
func (k *Keeper) print(findings []check.Finding) {
	var b strings.Builder
	for _, f := range findings {
		if f.Level != check.OK {
			fmt.Fprintf(&b, "%s: %s: %s; fix: %s\n", f.Level, f.Check, f.Message, f.Fix)
		}
	}
	if text := b.String(); text != k.findings {
		k.findings = text
		fmt.Fprint(k.Installer.Out, text)
	}
}

// remove undoes the installation for every daemon.
func (k *Keeper) remove(ctx context.Context) error {
	ctx = context.WithoutCancel(ctx)
	list, err := runtimeclass.Registered(k.Installer.Host, k.Installer.Options)
	for _, o := range list {
		if err == nil {
			err = setPending(pendingLine(o), true)
		}
	}
	lines := pendingLines()
	if err == nil && len(lines) == 0 && k.Installer.Host.Exists(runtimeclass.RecordPath) { // only the programs are left
		err = k.Installer.Remove(ctx, k.Installer.Options, false)
	}
	for _, line := range lines {
		o := k.Installer.Options
		o.Target, o.ConfigFile, _ = strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		if err == nil {
			err = k.Installer.Remove(ctx, o, true)
		}
		if err == nil {
			err = setPending(line, false)
		}
	}
	if err == nil && k.Installer.Host.Exists(runtimeclass.RecordPath) {
		err = errors.New("the programs stay until the containers that run with them end")
	}
	return err
}
