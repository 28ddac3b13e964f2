package runtimeclass

import (
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/procfs"
)

// Found is a daemon of a host, and the file or process that shows it.
type Found struct{ Target, Why string }

func (f Found) String() string { return f.Target + " (" + f.Why + ")" }

// signs are the targets, the files of which one shows each, and the name of its process.
var signs = []struct {
	target, process string
	files           []string
}{
	{"k3s", "k3s", []string{rancherDir + "/k3s/server/tls", rancherDir + "/k3s/agent"}},
	{"rke2", "rke2", []string{rancherDir + "/rke2/server/tls", rancherDir + "/rke2/agent"}},
	{Docker, "dockerd", append(inServicePath("dockerd"), DefaultDockerConfig)},
	// A kind node is a container with a containerd.
	{Containerd, "containerd", append([]string{"/kind/version", DefaultContainerdConfig}, inServicePath("containerd")...)},
}

func inServicePath(program string) (paths []string) {
	for _, dir := range filepath.SplitList(ServicePath) {
		paths = append(paths, path.Join(dir, program))
	}
	return paths
}

// Find returns the daemons that read a configuration on a host: those that run, if proc is not ""
// and some do, otherwise those with files there. A containerd without CRI beside Docker is Docker's.
func Find(h Host, proc procfs.FS) []Found {
	var there, running []Found
	for _, d := range signs {
		i := slices.IndexFunc(d.files, h.Exists)
		if i >= 0 {
			there = append(there, Found{d.target, d.files[i]})
		}
		for _, p := range proc.Named(d.process) {
			if d.target != Containerd || !strings.HasPrefix(p.Program, rancherDir) {
				running = append(running, Found{d.target, p.Program + " runs"})
				break
			}
		}
	}
	found := there
	if len(running) > 0 {
		found = running
	}
	has := func(target string) bool {
		return slices.ContainsFunc(found, func(f Found) bool { return f.Target == target })
	}
	if has(Docker) && has(Containerd) {
		// A configuration that cannot be read leaves the question to the operator.
		if c, err := ReadConfiguration(h, DefaultContainerdConfig); err == nil && c.CRIDisabled {
			found = slices.DeleteFunc(found, func(f Found) bool { return f.Target == Containerd })
		}
	}
	return found
}
