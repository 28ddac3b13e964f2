package runtimeclass

import (
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/hosttree"
)

// Options say what to install, and for which daemon.
type Options struct {
	// Target is Containerd, Docker or the name of a Distribution.
	Target string
	// ConfigFile is the configuration of containerd or Docker.
	ConfigFile string
	// Registration: Uninstall uses only BinDir, on a node without a record of what was installed.
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

// registration is the name of the options' registration in a record.
func (o Options) registration() string { return strings.TrimSpace(o.Target + " " + o.ConfigFile) }

// Registration says how a daemon is to know the shim.
type Registration struct {
	// Handler is its name for CRI and Docker.
	Handler string
	// BinDir is where the shim is, as the daemon sees it.
	BinDir string
	// Default makes it the runtime of containers that name none.
	Default bool
	// Replace takes the place of another runtime of that name, until Uninstall.
	Replace bool
}

var dnsLabel = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`)

// ValidHandler returns an error unless name can be a RuntimeClass handler: a DNS label (RFC 1123),
// as the API server demands.
func ValidHandler(name string) error {
	if !dnsLabel.MatchString(name) {
		return fmt.Errorf("handler %.256q is not a DNS label: lower-case letters, digits and '-', at most 63", name)
	}
	return nil
}

// Validate returns an error unless daemons can have this registration.
func (r Registration) Validate() error {
	if err := ValidHandler(r.Handler); err != nil {
		return err
	}
	if !path.IsAbs(r.BinDir) || strings.ContainsAny(r.BinDir, "\n\r\"'\\{}") {
		return fmt.Errorf("directory %.256q of the programs is not a plain absolute path", r.BinDir)
	}
	return nil
}

func (r Registration) shim() string { return path.Join(r.BinDir, ShimName) }

// inPath reports whether a daemon with the usual PATH finds the shim by its name.
func (r Registration) inPath() bool {
	return slices.Contains(strings.Split(ServicePath, ":"), path.Clean(r.BinDir))
}
