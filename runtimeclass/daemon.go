package runtimeclass

import (
	"cmp"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/procfs"
)

// Daemon is a program that runs containers, and what is the same about it on every host. The rest of
// this project asks for these values, and not for names.
type Daemon struct {
	// Name selects it, in --target and in the record; Title is its name in a sentence.
	Name, Title string
	// Process is the name of its process. Signs are files any of which identifies it if it does not
	// run.
	Process string
	Signs   []string
	// Programs are patterns of the program that is asked for its version, an example of which is
	// Version. ProgramDirs are patterns of directories with its programs, besides ServicePath.
	Programs, ProgramDirs []string
	Version               string
	// Config is the configuration that it reads by default. If Generated is true, it writes that file
	// at each start, from templates.
	Config    string
	Generated bool
	// IsContainerd is true if it is a containerd or brings one: it has containerd's versions, its
	// runtimes are in a configuration of containerd, and a kubelet can use it.
	IsContainerd bool
	// Uses is the daemon of the host that it may run containers with; "" if there is none.
	Uses string
	// GPUsFlag is true if its client has the flag --gpus.
	GPUsFlag bool
	// Print returns what install prints in place of an installation; nil for a daemon of a host.
	Print func(Registration) string
}

// HasConfig reports whether an operator may name its configuration.
func (d Daemon) HasConfig() bool { return d.Config != "" && !d.Generated }

// VersionOf returns the name of the daemon whose versions it has.
func (d Daemon) VersionOf() string {
	if d.IsContainerd {
		return Containerd
	}
	return d.Name
}

// Program returns its program below root, or "".
func (d Daemon) Program(root string) string {
	for _, pattern := range d.Programs {
		found, _ := filepath.Glob(filepath.Join("/", root, pattern)) // the patterns are valid
		for _, name := range slices.Backward(found) {
			if _, err := exec.LookPath(name); err == nil {
				return name
			}
		}
	}
	return ""
}

// registrar registers the shim with one daemon. A daemon is one file with one type that does this;
// no other code knows its name.
type registrar interface {
	daemon() Daemon
	// owns reports whether a containerd process is its own.
	owns(containerd procfs.Process) bool
	// runtimes returns the runtimes in a file that start this shim.
	runtimes(h Host, file string) (map[string]Runtime, error)
	// files returns the files that may have a registration, with the text to restore. but is the
	// file that gets a new registration; "" for a removal.
	files(p *Plan, o Options, but string) ([]configFile, error)
	// register plans a registration in one file.
	register(p *Plan, o Options) (edited, error)
	// restart returns the command that makes it read its configuration after a handler was added or
	// removed.
	restart(h Host, removed bool) Restart
	// byHand lists runtimes that start the shim and that an operator wrote, with their files.
	byHand(p *Plan, o Options) []string
}

// registrars are in the order in which they are found on a host and reported.
var registrars = []registrar{k3s, rke2, kind{}, docker{}, containerd{}}

// find returns the registrar of a daemon.
func find(name string) (registrar, error) {
	i := slices.IndexFunc(registrars, func(r registrar) bool { return r.daemon().Name == name })
	if i < 0 {
		return nil, fmt.Errorf("no daemon is called %.64q", name)
	}
	return registrars[i], nil
}

// Daemons returns the supported daemons, containerd first.
func Daemons() []Daemon {
	last := len(registrars) - 1
	var list []Daemon
	for _, r := range slices.Concat(registrars[last:], registrars[:last]) {
		list = append(list, r.daemon())
	}
	return list
}

// DaemonOf returns the daemon with a name; the zero value if there is none.
func DaemonOf(name string) Daemon {
	r, err := find(name)
	if err != nil {
		return Daemon{}
	}
	return r.daemon()
}

// Owner returns the name of the daemon that a containerd process belongs to. One that no other daemon
// owns is a daemon itself.
func Owner(p procfs.Process) string { return cmp.Or(ownedBy(p), Containerd) }

func ownedBy(containerd procfs.Process) string {
	for _, r := range registrars {
		if r.owns(containerd) {
			return r.daemon().Name
		}
	}
	return ""
}

// Runtimes returns the runtimes in a daemon's configuration that start this shim.
func (h Host) Runtimes(name, file string) (map[string]Runtime, error) {
	r, err := find(name)
	if err != nil {
		return nil, err
	}
	return r.runtimes(h, file)
}
