package install

import (
	"context"
	"errors"
	"io/fs"
	"path/filepath"
	"slices"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/cdispec"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/cmdline"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/hosttree"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/toolkit"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/runtimeclass"
)

// ErrGPUsFlag is returned for --gpus-flag without Docker.
var ErrGPUsFlag = cmdline.Errorf("--gpus-flag goes with --target docker only")

// Install plans the installation and carries it out.
func (i Installer) Install(ctx context.Context) error {
	plan, report, err := i.Plan(ctx)
	if err != nil {
		return err
	}
	if err := i.CarryOut(plan, report); err != nil || i.DryRun || !i.Restart {
		return err
	}
	var started error
	if i.PrepareUnit {
		started = runtimeclass.StartUnit(ctx, i.Err)
	}
	// Even if the unit failed: the daemon also runs containers without a GPU.
	if plan.Changed() {
		if err := plan.Restart.Run(ctx, i.Err); err != nil {
			return err
		}
	}
	return started
}

// Plan completes the options for the host's daemon and plans the installation. report is nil unless
// a configuration of NVIDIA's toolkit is carried over.
func (i *Installer) Plan(ctx context.Context) (none runtimeclass.Plan, report *toolkit.Report, err error) {
	found, err := i.findTarget()
	if err != nil {
		return none, nil, err
	}
	if i.GPUsFlag && !runtimeclass.DaemonOf(i.Target).GPUsFlag {
		return none, nil, ErrGPUsFlag
	}
	if i.Host.Daemon, err = i.daemonVersion(ctx, found); err != nil {
		return none, nil, err
	}
	i.Host.Program, i.Host.Default = i.daemonProgram(i.Target, found), found.Default
	if len(i.Toolkit) > 0 {
		read, err := toolkit.Read(i.Host.Root, i.Toolkit, i.ShimConfig)
		if err != nil {
			return none, nil, err
		}
		report, i.WriteShimConfig, i.ShimSettings = &read, true, read.Text
	}
	if runtimeclass.DaemonOf(i.Target).IsContainerd {
		i.KubeletSocket = runtimeclass.KubeletSocket(i.Host, i.proc())
	}
	if err := i.addCDI(); err != nil {
		return none, nil, err
	}
	plan, err := runtimeclass.Install(i.Host, i.Options)
	if found.Target != "" {
		plan.Notes = slices.Insert(plan.Notes, 0, "found "+found.String())
	}
	return plan, report, err
}

func (i *Installer) addCDI() error {
	if i.CDIFile == "" {
		return nil
	}
	before, err := cdispec.Read(i.CDIFile)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	text, err := i.MakeCDI()
	if err == nil {
		err = cdispec.CheckConflicts(i.CDIFile, text, filepath.Dir(i.CDIFile), cdispec.Dirs[1])
	}
	i.CDI = []hosttree.Change{{Kind: hosttree.Generated, Path: i.CDIFile, Before: before, After: text}}
	return err
}
