package runtimeclass

import (
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/hosttree"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/version"
)

// Options select what to install, and for which daemon.
type Options struct {
	// Target is Containerd, Docker or the name of a Distribution.
	Target string
	// ConfigFile is the configuration of containerd or Docker.
	ConfigFile string
	// Registration is how the shim is registered. Uninstall uses only its BinDir.
	Registration Registration
	// HandlerNamed is true if the operator chose the handler's name. Otherwise, with k3s and RKE2,
	// Install uses another name if this one is taken.
	HandlerNamed bool
	// DropDefault makes Install remove the default runtime that an earlier installation set.
	DropDefault bool
	// Programs is the directory on this system from which the programs are copied.
	Programs string
	// Arch is the tree's architecture, as Go names it; "" to detect it from the tree's shell.
	Arch string
	// PrepareUnit makes systemd run `nvidia-shimctl prepare` at boot.
	PrepareUnit bool
	// ShimConfig is the path of the shim's configuration. If WriteShimConfig is set, Install writes
	// ShimSettings to it.
	ShimConfig, ShimSettings string
	WriteShimConfig          bool
	// KubeletSocket is the socket of the host's kubelet, for the shim's configuration.
	KubeletSocket string
	// CDI is a change of the CDI specification, or empty.
	CDI []hosttree.Change
	// GPUsFlag makes Docker offer --gpus without NVIDIA's toolkit.
	GPUsFlag bool
	// KeepPrograms makes Uninstall leave the programs in place.
	KeepPrograms bool
}

// registration is the name of this registration in the record.
func (o Options) registration() string { return strings.TrimSpace(o.Target + " " + o.ConfigFile) }

// Registration is how the shim is registered with a daemon.
type Registration struct {
	// Handler is the shim's name in CRI and Docker.
	Handler string
	// BinDir is the shim's directory, as the daemon sees it.
	BinDir string
	// Default makes the shim the runtime of containers that name none.
	Default bool
	// Replace overrides another runtime with that name, until Uninstall.
	Replace bool
}

// builtIn is the runtime that daemons have without any configuration.
const builtIn = "runc"

var dnsLabel = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`)

// ValidHandler returns an error unless name can be a RuntimeClass handler: a DNS label (RFC 1123),
// as the API server requires.
func ValidHandler(name string) error {
	if !dnsLabel.MatchString(name) {
		return fmt.Errorf("handler %.256q is not a DNS label: lower-case letters, digits and '-', at most 63", name)
	}
	return nil
}

// Validate returns an error if a daemon cannot have this registration.
func (r Registration) Validate() error {
	if err := ValidHandler(r.Handler); err != nil {
		return err
	}
	if r.Handler == builtIn { // guard: installation: runc
		return fmt.Errorf("handler %q is the runtime that containerd and Docker have built in, for containers that name none: use another --handler, and --set-default for those", builtIn)
	}
	if !path.IsAbs(r.BinDir) || strings.ContainsAny(r.BinDir, "\n\r\"'\\{}") {
		return fmt.Errorf("directory %.256q of the programs is not a plain absolute path", r.BinDir)
	}
	return nil
}

func (r Registration) shim() string { return path.Join(r.BinDir, version.Shim) }

// inPath reports whether a daemon with the usual PATH finds the shim by its name.
func (r Registration) inPath() bool {
	return slices.Contains(strings.Split(ServicePath, ":"), path.Clean(r.BinDir))
}
