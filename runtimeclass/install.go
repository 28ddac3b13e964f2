package runtimeclass

import (
	"context"
	"fmt"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"time"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/hosttree"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/semver"
)

// Install plans the installation of the programs, the handler and everything else that the options
// request. The registration must be valid.
func Install(h Host, o Options) (Plan, error) {
	p := Plan{Host: h}
	record, err := p.readRecord(o)
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
		err = p.record(o, record)
	}
	return p, err
}

// Uninstall plans the removal of what Install recorded for this registration and no other
// registration needs.
func Uninstall(h Host, o Options) (Plan, error) {
	p := Plan{Host: h}
	p.Restart = p.restart(o, true)
	p.readBy(o)
	record, err := p.readRecord(o)
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
		err = p.release(o, record)
	}
	if err == nil {
		p.keepNeeded(o)
	}
	if slices.Contains(p.changing(hosttree.Link), cdiHookLink) {
		p.noteCDIFiles()
	}
	return p, err
}

// register adds the handler to one file, and removes an earlier registration from the others.
func (p *Plan) register(o Options) error {
	p.Restart = p.restart(o, false)
	p.readBy(o)
	var f edited
	var err error
	switch o.Target {
	case Containerd:
		f, err = p.registerContainerd(o)
	case Docker:
		f, err = p.registerDocker(o)
	default:
		f, err = p.registerDistribution(o)
	}
	if err == nil {
		err = p.unregister(o, f.name)
	}
	if err == nil {
		err = p.edit(f)
	}
	if err == nil && o.Target == Docker {
		err = p.offerGPUs(o)
	}
	return err
}

// unregister plans the removal of a registration from all files except one.
func (p *Plan) unregister(o Options, but string) error {
	var files []configFile
	var err error
	switch o.Target {
	case Containerd:
		var loaded []tomlFile
		loaded, err = p.Host.load(o.ConfigFile, false)
		if err == nil && p.Host.registered(o) {
			// Others were written by an operator.
			own := registeredIn(loaded)
			if but != "" || len(own) == 0 {
				own = []string{o.Registration.Handler}
			}
			isOther := func(name string) bool { return !slices.Contains(own, name) }
			names := slices.DeleteFunc(unmarked(loaded), isOther)
			if but == "" { // otherwise install writes these again
				names = append(names, marked(loaded)...)
				p.byHand = startedFrom(loaded, o.Registration.BinDir, isOther)
			}
			err = takeOut(loaded, names)
		}
		for _, f := range loaded {
			files = append(files, f.configFile)
		}
	case Docker:
		files = make([]configFile, 1)
		files[0], _, err = p.Host.readDocker(o.ConfigFile)
	default:
		files, err = distributionFiles(p.Host, Distributions[o.Target])
	}
	for _, f := range files {
		if err == nil && f.name != but {
			err = p.restore(f)
		}
	}
	return err
}

// readBy notes which daemon reads the changes, and from which file it starts.
func (p *Plan) readBy(o Options) {
	p.target, p.mainFile, p.replace = o.Target, o.ConfigFile, o.Registration.Replace
	if d, ok := Distributions[o.Target]; ok {
		p.mainFile = path.Join(d.Dir, "config.toml")
	}
}

// restart returns the command that makes the target's daemon read its configuration after a handler
// was added or removed.
func (p *Plan) restart(o Options, removed bool) Restart {
	switch {
	case o.Target == Docker && !removed:
		return Restart{"reload", []string{"docker"}}
	case o.Target == Docker: // a reload removes neither a runtime nor a default
		return Restart{"restart", []string{"docker"}}
	case o.Target == Containerd:
		return Restart{"restart", []string{"containerd"}}
	}
	return Restart{"restart", p.Host.units(Distributions[o.Target])}
}

// DaemonVersion asks the target's containerd or dockerd on this host for its version. If program is
// "", it searches for one; the version is unknown if there is none. Only a program that no user but
// root can replace is executed.
func DaemonVersion(ctx context.Context, target, program string) (semver.Version, error) {
	if program == "" {
		program = findDaemon(target)
	}
	if program == "" {
		return semver.Version{}, nil
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	cmd, err := daemonCommand(ctx, program, "--version")
	if err != nil {
		return semver.Version{}, err
	}
	out, err := cmd.CombinedOutput()
	if err != nil {
		return semver.Version{}, fmt.Errorf("%s --version: %w: %.256q", program, err, out)
	}
	return semver.Parse(string(out))
}

// findDaemon returns the path of the target's containerd or dockerd, or "".
func findDaemon(target string) string {
	if d, ok := Distributions[target]; ok {
		return d.Program("")
	}
	name := "containerd"
	if target == Docker {
		name = "dockerd"
	}
	for _, dir := range filepath.SplitList(ServicePath) {
		if p, err := exec.LookPath(filepath.Join(dir, name)); err == nil {
			return p
		}
	}
	return ""
}
