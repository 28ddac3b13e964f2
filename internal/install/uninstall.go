package install

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/state"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/view"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/cmdline"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/procfs"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/runtimeclass"
)

// Uninstall removes the registration that the operator named, or the only one, and the programs if
// no other registration needs them.
func (i Installer) Uninstall(ctx context.Context) error {
	list, err := i.registered()
	for _, o := range list {
		if err == nil {
			err = i.Remove(ctx, o, false)
		}
	}
	return err
}

// Remove undoes an installation. pending is true if the daemon has not yet read an earlier change
// of its configuration.
func (i Installer) Remove(ctx context.Context, o runtimeclass.Options, pending bool) error {
	i.Host.Program = i.runningProgram(o)
	plan, err := runtimeclass.Uninstall(i.Host, o)
	if err != nil {
		return err
	}
	if plan.State, err = i.stateOf(o); err != nil {
		return err
	}
	if len(plan.NeededBy) > 0 {
		plan.State = ""
	}
	if err := i.CarryOut(plan, nil); err != nil || i.DryRun {
		return err
	}
	if i.Restart && (plan.Changed() || pending) {
		err = plan.Restart.Run(ctx, i.Err)
	}
	// Before the restart the daemon may start the shim.
	if err != nil && len(plan.Programs) > 0 {
		return fmt.Errorf("%w, and uninstall again to remove the programs", err)
	}
	if err != nil {
		return err
	}
	if len(plan.NeededBy) > 0 {
		return fmt.Errorf("the programs stay, because runtimes start them that install did not write (%s): remove those, then uninstall again", strings.Join(plan.NeededBy, ", "))
	}
	stay, err := plan.RemovePrograms(procfs.Host)
	for _, p := range stay {
		fmt.Fprintf(i.Err, "%s stays, because containers run with it: run uninstall again when they are gone\n", p)
	}
	if err == nil && len(stay) == 0 && plan.State != "" {
		err = removeState(plan.State)
	}
	return err
}

// stateOf returns the state directory of this host if it exists and no other registration needs it.
func (i Installer) stateOf(o runtimeclass.Options) (string, error) {
	list, err := runtimeclass.Registered(i.Host, o)
	if n := len(list); err != nil || i.Host.Root != "/" || n > 1 && !(i.All && list[n-1].ConfigFile == o.ConfigFile) {
		return "", err
	}
	cfg, err := config.Find("")
	if err != nil {
		fmt.Fprintf(i.Err, "the state directory stays: %v\n", err)
		return "", nil
	}
	if _, err := os.Lstat(cfg.Host.StateDir); err != nil {
		return "", nil
	}
	return cfg.Host.StateDir, nil
}

// removeState removes the views from this host, and then its state directory.
func removeState(dir string) error {
	s, err := state.Open(dir, true)
	if err == nil {
		err = view.Remove(s)
	}
	if err == nil {
		err = s.Remove()
	}
	return err
}

func (i Installer) registered() ([]runtimeclass.Options, error) {
	list, err := runtimeclass.Registered(i.Host, i.Options)
	list = slices.DeleteFunc(list, func(r runtimeclass.Options) bool {
		return (i.ConfigNamed || i.TargetNamed) && r.Target != i.Target || i.ConfigNamed && r.ConfigFile != i.ConfigFile
	})
	if err != nil {
		return nil, err
	}
	if len(list) == 0 {
		return []runtimeclass.Options{i.Options}, nil
	}
	if len(list) == 1 || i.All {
		return list, nil
	}
	var names []string
	for _, r := range list {
		names = append(names, strings.TrimSpace(r.Target+" "+r.ConfigFile))
	}
	return nil, cmdline.Errorf("installed for %s: name one with --target, or --all", strings.Join(names, " and for "))
}
