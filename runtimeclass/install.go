package runtimeclass

import (
	"cmp"
	"path"
	"slices"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/hosttree"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/version"
)

// Install plans the installation of the programs, the handler and everything else that the options
// request. The registration must be valid.
func Install(h Host, o Options) (Plan, error) {
	p, err := newPlan(h, o, false)
	if err == nil {
		err = p.installPrograms(o)
	}
	if err == nil {
		err = p.register(o)
	}
	if err == nil && o.PrepareUnit {
		err = p.installUnit(o.Registration.BinDir)
	}
	if err == nil {
		err = p.addKubelet(&o)
	}
	if err == nil && o.WriteShimConfig {
		err = p.installConfig(o.ShimConfig, o.ShimSettings)
	}
	p.Changes = append(p.Changes, o.CDI...)
	if len(o.CDI) > 0 && !o.PrepareUnit && !h.Exists(UnitLink) {
		p.note("%s is not updated when the driver or MIG changes: add --prepare-unit, or run `nvidia-shimctl prepare --cdi` after each change", o.CDI[0].Path)
	}
	if err == nil {
		err = p.record(o)
	}
	return p, err
}

// Uninstall plans the removal of what Install recorded for this registration and no other
// registration needs.
func Uninstall(h Host, o Options) (Plan, error) {
	p, err := newPlan(h, o, true)
	if err == nil {
		err = p.unregister(o, "")
	}
	if !p.Changed() {
		p.note("install registered nothing with %s here; what was added by hand stays", o.registration())
	}
	if err == nil {
		err = p.removeOriginals(o)
	}
	if err == nil {
		err = p.release(o)
	}
	if err == nil {
		p.keepNeeded(o)
	}
	if slices.Contains(p.changing(hosttree.Link), cdiHookLink) {
		p.noteCDIFiles()
	}
	return p, err
}

// newPlan returns a plan without changes for a daemon that is to get a handler, or to lose one.
func newPlan(h Host, o Options, removed bool) (p Plan, err error) {
	p = Plan{Host: h, replace: o.Registration.Replace, dirs: []string{o.Registration.BinDir, path.Dir(RecordPath)}}
	if p.registrar, err = find(o.Target); err != nil {
		return p, err
	}
	p.mainFile, p.Restart = cmp.Or(o.ConfigFile, p.registrar.daemon().Config), p.registrar.restart(h, removed)
	p.installed, err = h.loadRecord()
	for _, f := range p.installed {
		p.dirs = append(p.dirs, path.Dir(f.Path))
	}
	return p, err
}

// register adds the handler to one file, and removes an earlier registration from the others.
func (p *Plan) register(o Options) error {
	f, err := p.registrar.register(p, o)
	if err == nil {
		err = p.unregister(o, f.name)
	}
	if err == nil {
		err = p.edit(f)
	}
	p.Changes = append(p.Changes, f.more...)
	return err
}

func (p *Plan) unregister(o Options, but string) error {
	files, err := p.registrar.files(p, o, but)
	for _, f := range files {
		if err == nil && f.name != but {
			err = p.restore(f)
		}
	}
	return err
}

// keepNeeded makes an uninstallation leave the programs if daemons still have runtimes that start
// the shim: those that an operator wrote for Docker, or for a daemon without an installation.
func (p *Plan) keepNeeded(o Options) {
	goes := func(c hosttree.Change) bool { return path.Base(c.Path) == version.Shim && c.After == nil }
	if !slices.ContainsFunc(p.Programs, goes) {
		return
	}
	for _, r := range registrars {
		p.NeededBy = append(p.NeededBy, r.byHand(p, o)...)
	}
	if len(p.NeededBy) > 0 { // guard: installation: programs kept for others
		p.Programs = nil
	}
}
