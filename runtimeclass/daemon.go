package runtimeclass

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/procfs"
)

// registrars are in the order in which they are found on a host and reported.
var registrars = []registrar{k3s, rke2, kind{}, docker{}, containerd{}}

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
