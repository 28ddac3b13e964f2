package runtimeclass

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"time"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/hosttree"
)

// The daemons to register with, besides the Distributions.
const (
	Containerd = "containerd"
	Docker     = "docker"
)

// Options say what to install, and for which daemon.
type Options struct {
	// Target is Containerd, Docker or the name of a Distribution.
	Target string
	// ConfigFile is the configuration of containerd or Docker.
	ConfigFile string
	// Registration: Uninstall uses only BinDir, to find what a process that was killed left there.
	Registration Registration
	// HandlerNamed says that the operator chose the handler's name. Otherwise it is another one
	// with k3s and RKE2 if these make a handler of that name themselves.
	HandlerNamed bool
	// DropDefault has Install take away the default runtime that an earlier one set.
	DropDefault bool
	// Programs is the directory of this system to copy the programs from.
	Programs string
	// Arch is that of the tree, as Go names it; "" to see it from the tree's shell.
	Arch string
	// PrepareUnit has systemd run `nvidia-shimctl prepare` at boot.
	PrepareUnit bool
	// ShimConfig is the shim's configuration. Install writes it, with the text ShimSettings, if
	// WriteShimConfig is set.
	ShimConfig, ShimSettings string
	WriteShimConfig          bool
	// KubeletSocket is that of the host's kubelet, for the shim's configuration.
	KubeletSocket string
	// CDI is a change of the CDI specification, or none.
	CDI []hosttree.Change
	// GPUsFlag has Docker offer --gpus without NVIDIA's toolkit.
	GPUsFlag bool
	// KeepPrograms has Uninstall leave the programs.
	KeepPrograms bool
}

// Install plans the installation of the programs, the handler and what else the options ask for.
// The registration is a valid one.
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
		p.note("%s does not follow changes of the driver and of MIG by itself: add --prepare-unit, or run `nvidia-shimctl prepare --cdi` after each", o.CDI[0].Path)
	}
	if err == nil {
		err = p.record(o, record)
	}
	return p, err
}

// Uninstall plans the removal of what Install recorded for this registration, and no other one
// needs.
func Uninstall(h Host, o Options) (Plan, error) {
	p := Plan{Host: h}
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
	if slices.Contains(p.Changing(hosttree.Link), cdiHookLink) {
		p.noteCDIFiles()
	}
	return p, err
}

func (p *Plan) register(o Options) error {
	switch o.Target {
	case Containerd:
		return p.registerContainerd(o)
	case Docker:
		return p.registerDocker(o)
	}
	return p.registerDistribution(o)
}

// unregister adds the removal of a registration from all files but one.
func (p *Plan) unregister(o Options, but string) error {
	var files []configFile
	var err error
	switch o.Target {
	case Containerd:
		p.Restart = Restart{"restart", []string{"containerd"}}
		var loaded []tomlFile
		loaded, err = p.Host.load(o.ConfigFile, false)
		for _, f := range loaded {
			files = append(files, f.configFile)
		}
	case Docker:
		p.Restart = Restart{"reload", []string{"docker"}}
		if but == "" { // a reload takes no runtime and no default away
			p.Restart.Verb = "restart"
		}
		files = make([]configFile, 1)
		files[0], _, err = p.Host.readDocker(o.ConfigFile)
	default:
		d := Distributions[o.Target]
		p.Restart = Restart{"restart", p.Host.units(d)}
		files, err = distributionFiles(p.Host, d)
	}
	for _, f := range files {
		if err == nil && f.name != but {
			err = p.restore(f)
		}
	}
	return err
}

// DaemonVersion asks the target's containerd or dockerd on this host for its version. program is ""
// to look for one; without any the version is unknown.
func DaemonVersion(ctx context.Context, target, program string) (Version, error) {
	if program == "" {
		program = findDaemon(target)
	}
	if program == "" {
		return Version{}, nil
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, "--version")
	cmd.WaitDelay = time.Second
	out, err := cmd.CombinedOutput()
	if err != nil {
		return Version{}, fmt.Errorf("%s --version: %w: %.256q", program, err, out)
	}
	return ParseVersion(string(out))
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
