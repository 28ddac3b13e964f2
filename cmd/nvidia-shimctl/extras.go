package main

import (
	"context"
	"fmt"
	"path/filepath"

	"github.com/urfave/cli/v3"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/runtimeclass"
)

// extras are the files that install makes on request besides the registration, and
// that uninstall takes away: no daemon has to be restarted for them.
type extras struct {
	plan *runtimeclass.Plan
	// unit is set where the unit of prepare is to be there afterwards.
	unit bool
	// toolkit is what became of the configuration of NVIDIA's toolkit, if asked for.
	toolkit *toolkitReport
	// refused is why the real run of a dry one would end before it changed anything.
	refused error
}

func newExtras(c *cli.Command, host runtimeclass.Host, reg runtimeclass.Registration) (*extras, error) {
	x := &extras{plan: &runtimeclass.Plan{Host: host}}
	if c.Bool("prepare-unit") {
		change, err := host.InstallUnit(reg.BinDir)
		if err != nil {
			return nil, err
		}
		x.unit = true
		x.plan.Changes = append(x.plan.Changes, change)
		x.plan.Notes = append(x.plan.Notes, fmt.Sprintf("%s runs at every boot; for now: systemctl daemon-reload && systemctl start %s", runtimeclass.UnitName, runtimeclass.UnitName))
	}
	return x, x.fromToolkit(c)
}

// leftExtras are those that are there and of this program, to be removed.
func leftExtras(c *cli.Command, host runtimeclass.Host) (*extras, error) {
	change, err := host.UninstallUnit(filepath.Clean(c.String("bin-dir")))
	if err != nil {
		return nil, err
	}
	x := &extras{plan: &runtimeclass.Plan{Host: host, Changes: []runtimeclass.Change{change}}}
	file := shimConfig(c)
	change, edited, err := host.UninstallConfig(file)
	if err != nil {
		return nil, err
	}
	x.plan.Changes = append(x.plan.Changes, change)
	if edited {
		x.plan.Notes = append(x.plan.Notes, file+" stays: it was changed since --from-toolkit wrote it")
	}
	return x, nil
}

func (x *extras) apply() error {
	if err := x.plan.Apply(); err != nil {
		return err
	}
	if x.unit {
		return x.plan.Host.EnableUnit()
	}
	return x.plan.Host.DisableUnit()
}

// start runs the unit now, where install may restart services of this host.
func (x *extras) start(ctx context.Context, c *cli.Command) error {
	if !x.unit || !c.Bool("restart") || filepath.Clean(c.String("root")) != "/" {
		return nil
	}
	for _, args := range [][]string{{"daemon-reload"}, {"restart", runtimeclass.UnitName}} {
		if err := systemctl(ctx, c, args...); err != nil {
			return fmt.Errorf("systemctl %s: %w: `journalctl -u %s` says why", args[0], err, runtimeclass.UnitName)
		}
	}
	return nil
}
