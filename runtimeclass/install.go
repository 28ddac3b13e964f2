package runtimeclass

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"time"
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
	// Registration is of no use to Uninstall, but for BinDir.
	Registration Registration
	// HandlerNamed says that the operator chose the handler's name. Otherwise it is another one
	// with k3s and RKE2 if these make a handler of that name themselves.
	HandlerNamed bool
	// Programs is the directory of this system to copy the programs from.
	Programs string
	// PrepareUnit has systemd run `nvidia-shimctl prepare` at boot.
	PrepareUnit bool
	// ShimConfig is the shim's configuration. Install writes it, with the text ShimSettings, if
	// WriteShimConfig is set; Uninstall removes it if it was written so.
	ShimConfig, ShimSettings string
	WriteShimConfig          bool
}

// Install plans the installation of the programs, the handler and what else the options ask for.
// The registration is a valid one.
func Install(h Host, o Options) (Plan, error) {
	p, err := register(h, o)
	if err != nil {
		return Plan{}, err
	}
	programs, err := h.installPrograms(o.Programs, o.Registration.BinDir)
	if err != nil {
		return Plan{}, err
	}
	p.Changes = append(programs, p.Changes...)
	if o.PrepareUnit {
		unit, err := h.installUnit(o.Registration.BinDir)
		if err != nil {
			return Plan{}, err
		}
		p.Changes = append(p.Changes, unit...)
		p.Notes = append(p.Notes, fmt.Sprintf("%s runs at every boot; for now: systemctl daemon-reload && systemctl start %s", UnitName, UnitName))
	}
	if o.WriteShimConfig {
		config, err := h.installConfig(o.ShimConfig, o.ShimSettings)
		if err != nil {
			return Plan{}, err
		}
		p.Changes = append(p.Changes, config)
	}
	return p, nil
}

// Uninstall plans the removal of what Install changed. The programs stay until RemovePrograms:
// before its restart the daemon may start the shim.
func Uninstall(h Host, o Options) (Plan, error) {
	p, err := unregister(h, o, "")
	if err != nil {
		return Plan{}, err
	}
	if !p.Changed() {
		p.Notes = append(p.Notes, "nothing of this program is registered here")
	}
	unit, err := h.uninstallUnit(o.Registration.BinDir)
	if err != nil {
		return Plan{}, err
	}
	config, notes, err := h.uninstallConfig(o.ShimConfig)
	p.Changes, p.Notes = slices.Concat(p.Changes, unit, config), append(p.Notes, notes...)
	return p, err
}

// edit registers the handler in one configuration file.
type edit struct {
	handler string
	file    configFile
	after   []byte
	// notes say what was chosen and why.
	notes []string
}

func (e *edit) note(format string, args ...any) {
	e.notes = append(e.notes, fmt.Sprintf(format, args...))
}

// register plans the registration in one file, and the removal of an earlier one from the others.
func register(h Host, o Options) (Plan, error) {
	var e edit
	var err error
	switch o.Target {
	case Containerd:
		e, err = registerContainerd(h, o.ConfigFile, o.Registration)
	case Docker:
		e, err = registerDocker(h, o.ConfigFile, o.Registration)
	default:
		e, err = registerDistribution(h, Distributions[o.Target], o.Registration, o.HandlerNamed)
	}
	if err != nil {
		return Plan{}, err
	}
	p, err := unregister(h, o, e.file.name)
	if err != nil {
		return Plan{}, err
	}
	edited, err := h.edited(e.file, e.after)
	p.Handler, p.Changes, p.Notes = e.handler, append(p.Changes, edited...), append(e.notes, p.Notes...)
	return p, err
}

// unregister plans the removal of a registration from all files but one.
func unregister(h Host, o Options, but string) (Plan, error) {
	p := Plan{Host: h}
	var files []configFile
	var err error
	switch o.Target {
	case Containerd:
		p.Restart = Restart{"restart", []string{"containerd"}}
		files, err = containerdFiles(h, o.ConfigFile)
	case Docker:
		p.Restart = Restart{"reload", []string{"docker"}}
		var file configFile
		file, err = readDocker(h, o.ConfigFile)
		files = append(files, file)
	default:
		d := Distributions[o.Target]
		p.Restart = Restart{"restart", d.Units}
		files, err = distributionFiles(h, d)
	}
	if err != nil {
		return Plan{}, err
	}
	for _, f := range files {
		if f.name == but {
			continue
		}
		changes, notes, err := h.restored(f)
		if err != nil {
			return Plan{}, err
		}
		p.Changes, p.Notes = append(p.Changes, changes...), append(p.Notes, notes...)
	}
	return p, nil
}

// versionTimeout is for a program that only prints its version.
const versionTimeout = 10 * time.Second

// DaemonVersion asks the target's containerd for its version. program is "" to look for one;
// without any the version is unknown.
func DaemonVersion(ctx context.Context, root, target, program string) (Version, error) {
	if program == "" {
		program = findContainerd(root, target)
	}
	if program == "" || target == Docker {
		return Version{}, nil
	}
	ctx, cancel := context.WithTimeout(ctx, versionTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, "--version")
	cmd.WaitDelay = time.Second
	out, err := cmd.CombinedOutput()
	if err != nil {
		return Version{}, fmt.Errorf("%s --version: %w: %.256q", program, err, out)
	}
	return ParseVersion(string(out))
}

// findContainerd returns the path of the target's containerd below root, or "".
func findContainerd(root, target string) string {
	if d, ok := Distributions[target]; ok {
		for _, pattern := range d.Programs {
			// The patterns are correct.
			if found, _ := filepath.Glob(filepath.Join(root, pattern)); len(found) > 0 {
				return found[len(found)-1]
			}
		}
		return ""
	}
	for _, dir := range filepath.SplitList(ServicePath) {
		if p, err := exec.LookPath(filepath.Join(root, dir, "containerd")); err == nil {
			return p
		}
	}
	return ""
}
