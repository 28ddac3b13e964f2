package runtimeclass

import (
	"cmp"
	"path"
	"path/filepath"
	"slices"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/procfs"
)

// Found is a daemon on a host, with the file or process that identifies it.
type Found struct {
	Target, Why string
	// Runs is true if a process identifies it. Program and ConfigFile are then those of a containerd
	// or dockerd; Program is "" if its program is none to execute: see Place.
	Runs                bool
	Program, ConfigFile string
	// Default is the default runtime on the command line of a dockerd; "" for none.
	Default string
}

func (f Found) String() string {
	why := f.Why
	if f.ConfigFile != "" {
		why += " with " + f.ConfigFile
	}
	return f.Target + " (" + why + ")"
}

// Find returns the daemons of a host, or those of one target. It returns the running daemons if
// proc is not "" and any runs, otherwise those whose files exist. It omits one that another uses and
// that serves no Kubernetes: a containerd without CRI next to Docker is Docker's own.
func Find(h Host, proc procfs.FS, target string) []Found {
	var there, running []Found
	for _, r := range registrars {
		d := r.daemon()
		if target != "" && d.Name != target || d.Print != nil {
			continue
		}
		if i := slices.IndexFunc(d.Signs, h.Exists); i >= 0 {
			there = append(there, Found{Target: d.Name, Why: d.Signs[i]})
		}
		for _, p := range proc.Running(d.Process) {
			if owner := ownedBy(p); owner != "" && owner != d.Name { // it has a configuration of its own
				continue
			}
			f := Found{Target: d.Name, Why: p.Program + " runs", Runs: true}
			if !d.Generated {
				f.Program, f.ConfigFile = h.Place(p, d.Process), ConfigFlag(p.Args)
				f.Default = defaultFlag(p.Args)
			}
			if !slices.Contains(running, f) {
				running = append(running, f)
			}
		}
	}
	found := there
	if len(running) > 0 {
		found = running
	}
	uses := map[string]bool{}
	for _, f := range found {
		uses[DaemonOf(f.Target).Uses] = true
	}
	return slices.DeleteFunc(found, func(f Found) bool {
		if !uses[f.Target] {
			return false
		}
		// If the configuration cannot be read, the operator has to choose.
		c, err := ReadConfiguration(h, cmp.Or(f.ConfigFile, DaemonOf(f.Target).Config))
		return err == nil && c.CRIDisabled
	})
}

// Place returns the path of a daemon's program if the process executes it, otherwise "". It is one
// of programDirs, whatever path the process was started by: a program is not executed because a
// process names it.
func (h Host) Place(p procfs.Process, name string) string {
	for _, dir := range programDirs() {
		found, _ := h.Glob(path.Join(dir, name)) // the patterns are valid
		for _, program := range found {
			if p.Executes(h.Real(program)) {
				return program
			}
		}
	}
	return ""
}

// IsProgramDir reports whether a directory has programs that may be executed. Those in other
// directories of a daemon's PATH are not.
func IsProgramDir(dir string) bool {
	return slices.ContainsFunc(programDirs(), func(pattern string) bool {
		matches, _ := path.Match(pattern, dir) // the patterns are valid
		return matches
	})
}

// programDirs returns patterns of the directories in which programs are executed, to ask for their
// versions: those of packages and of distributions of Kubernetes.
func programDirs() []string {
	dirs := filepath.SplitList(ServicePath)
	for _, r := range registrars {
		dirs = append(dirs, r.daemon().ProgramDirs...)
	}
	return dirs
}
