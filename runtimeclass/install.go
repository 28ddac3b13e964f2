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
	p, err := registerWith(h, o)
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

// registerWith plans the registration alone.
func registerWith(h Host, o Options) (Plan, error) {
	switch o.Target {
	case Containerd:
		return installContainerd(h, o.ConfigFile, o.Registration)
	case Docker:
		return installDocker(h, o.ConfigFile, o.Registration)
	}
	return installDistribution(h, Distributions[o.Target], o.Registration, o.HandlerNamed)
}

// Uninstall plans the removal of what Install changed. The programs stay until RemovePrograms:
// before its restart the daemon may start the shim.
func Uninstall(h Host, o Options) (Plan, error) {
	p, err := unregisterFrom(h, o)
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

func unregisterFrom(h Host, o Options) (Plan, error) {
	switch o.Target {
	case Containerd:
		return uninstallContainerd(h, o.ConfigFile)
	case Docker:
		return uninstallDocker(h, o.ConfigFile)
	}
	return uninstallDistribution(h, Distributions[o.Target])
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
	for _, pattern := range Distributions[target].Programs {
		// The patterns are correct.
		if found, _ := filepath.Glob(filepath.Join(root, pattern)); len(found) > 0 {
			return found[len(found)-1]
		}
	}
	if _, ok := Distributions[target]; ok {
		return ""
	}
	for _, dir := range filepath.SplitList(ServicePath) {
		if p, err := exec.LookPath(filepath.Join(root, dir, "containerd")); err == nil {
			return p
		}
	}
	return ""
}
