package runtimeclass

import (
	"cmp"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/procfs"
)

// Found is a daemon on a host, with the file or process that identifies it.
type Found struct {
	Target, Why string
	// Runs is true if a process identifies it. Program and ConfigFile are then those of a containerd
	// or dockerd; Program is "" if its program is none to execute: see Place.
	Runs                bool
	Program, ConfigFile string
}

func (f Found) String() string {
	why := f.Why
	if f.ConfigFile != "" {
		why += " with " + f.ConfigFile
	}
	return f.Target + " (" + why + ")"
}

// signs has the name of each target's process and the files any of which identifies the target.
var signs = []struct {
	target, process string
	files           []string
}{
	{"k3s", "k3s", []string{rancherDir + "/k3s/server/tls", rancherDir + "/k3s/agent"}},
	{"rke2", "rke2", []string{rancherDir + "/rke2/server/tls", rancherDir + "/rke2/agent"}},
	{Docker, "dockerd", append(inServicePath("dockerd"), DefaultDockerConfig)},
	// A kind node is a container with a containerd.
	{Containerd, "containerd", slices.Concat([]string{"/kind/version"}, inServicePath("containerd"), []string{DefaultContainerdConfig})},
}

// Find returns the daemons of a host, or those of one target. It returns the running daemons if
// proc is not "" and any runs, otherwise those whose files exist. It omits a containerd without CRI
// next to Docker, which is Docker's own.
func Find(h Host, proc procfs.FS, target string) []Found {
	var there, running []Found
	for _, d := range signs {
		if target != "" && d.target != target {
			continue
		}
		if i := slices.IndexFunc(d.files, h.Exists); i >= 0 {
			there = append(there, Found{Target: d.target, Why: d.files[i]})
		}
		for _, p := range proc.Running(d.process) {
			f := Found{Target: d.target, Why: p.Program + " runs", Runs: true}
			if Distributions[d.target].Name == "" {
				f.Program, f.ConfigFile = h.Place(p, d.process), ConfigFlag(p.Args)
			}
			// A distribution and Docker write the configuration of their own containerd.
			owned := d.target == Containerd && Owner(p) != Containerd
			if !owned && !slices.Contains(running, f) {
				running = append(running, f)
			}
		}
	}
	found := there
	if len(running) > 0 {
		found = running
	}
	docker := slices.ContainsFunc(found, func(f Found) bool { return f.Target == Docker })
	return slices.DeleteFunc(found, func(f Found) bool {
		if f.Target != Containerd || !docker {
			return false
		}
		// If the configuration cannot be read, the operator has to choose.
		c, err := ReadConfiguration(h, cmp.Or(f.ConfigFile, DefaultContainerdConfig))
		return err == nil && c.CRIDisabled
	})
}

// programDirs are patterns of the directories in which programs are executed, to ask for their
// versions: those of packages and of distributions of Kubernetes.
var programDirs = append(filepath.SplitList(ServicePath), "/opt/bin", "/var/lib/k0s/bin", "/snap/microk8s/current/bin",
	rancherDir+"/k3s/data/*/bin", rancherDir+"/rke2/bin", rancherDir+"/rke2/data/*/bin")

// IsProgramDir reports whether a directory has programs that may be executed. Those in other
// directories of a daemon's PATH are not.
func IsProgramDir(dir string) bool {
	return slices.ContainsFunc(programDirs, func(pattern string) bool {
		matches, _ := path.Match(pattern, dir) // the patterns are valid
		return matches
	})
}

// Place returns the path of a daemon's program if the process executes it, otherwise "". It is one
// of programDirs, whatever path the process was started by: a program is not executed because a
// process names it.
func (h Host) Place(p procfs.Process, name string) string {
	for _, dir := range programDirs {
		found, _ := h.Glob(path.Join(dir, name)) // the patterns are valid
		for _, program := range found {
			if p.Executes(h.Real(program)) {
				return program
			}
		}
	}
	return ""
}

// Owner returns the target that a containerd process belongs to.
func Owner(p procfs.Process) string {
	for name := range Distributions {
		if strings.HasPrefix(p.Program, path.Join(rancherDir, name)+"/") {
			return name
		}
	}
	if strings.HasSuffix(path.Dir(ConfigFlag(p.Args)), "/docker/containerd") {
		return Docker
	}
	return Containerd
}

// ConfigFlag returns the configuration file on the command line of containerd or dockerd. It
// returns "" if there is none or its path is relative.
func ConfigFlag(args []string) string {
	for i, a := range args {
		name, value, found := strings.Cut(a, "=")
		if !slices.Contains([]string{"--config", "-config", "--c", "-c", "--config-file"}, name) {
			continue
		}
		if !found && i+1 < len(args) {
			value = args[i+1]
		}
		if path.IsAbs(value) {
			return value
		}
	}
	return ""
}
