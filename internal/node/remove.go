package node

import (
	"context"
	"errors"
	"strings"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/runtimeclass"
)

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
	if err == nil && len(lines) == 0 && k.Installer.Host.Exists(runtimeclass.RecordPath) { // the programs are left
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
