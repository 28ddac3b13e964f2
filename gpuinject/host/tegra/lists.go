package tegra

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host/driver"
)

// listDir holds the lists of what a container needs, and listNames are the lists to read; older
// releases have only some of them.
const listDir = "/etc/nvidia-container-runtime/host-files-for-container.d"

var listNames = []string{"devices.csv", "drivers.csv", "l4t.csv"}

// maxList bounds a list, in bytes.
const maxList = 1 << 20

// entry is a line of a list, or one match of its pattern.
type entry struct{ kind, path string }

// lists is the search for the files that the lists name.
type lists struct {
	*driver.Search
	nodes   []string // paths and patterns below /dev
	entries []entry
}

// DriverFiles finds what the lists name, for every capability.
//
// Files and directories are given at their own paths. A link to a library that is itself listed
// becomes another name of that library for the linker.
func DriverFiles(cfg config.Host, version string) (driver.Files, error) {
	s, err := driver.NewSearch(cfg, version)
	if err != nil {
		return driver.Files{}, err
	}
	defer s.Close()
	l := &lists{Search: s}
	for _, name := range listNames {
		l.read(path.Join(listDir, name))
	}
	l.add("lib", releaseFile)
	// Links come last: by then their targets are known.
	for _, kind := range []string{"lib", "dir", "sym"} {
		for _, e := range l.entries {
			if e.kind == kind {
				l.take(e)
			}
		}
	}
	// A host of this kind need not have NVML.
	s.Expect(config.Compute, "libcuda.so.1", fmt.Sprintf("this is a Tegra, but no list in %s names libcuda.so.1, or it is not there: install the packages nvidia-l4t-core, nvidia-l4t-cuda and nvidia-l4t-init",
		path.Join(cfg.DriverRoot, listDir)))
	files, err := s.Files()
	files.Nodes = l.nodes
	return files, err
}

// read reads lines of "dev|dir|lib|sym, <path>".
func (l *lists) read(name string) {
	data, ok := l.Read(name, maxList)
	if ok {
		l.Searched(name)
	}
	for line := range strings.Lines(string(data)) {
		line = strings.TrimSpace(line)
		kind, p, _ := strings.Cut(line, ",")
		kind, p = strings.TrimSpace(kind), strings.TrimSpace(p)
		switch {
		case line == "" || line[0] == '#':
		case !slices.Contains([]string{"dev", "dir", "lib", "sym"}, kind) || !path.IsAbs(p) || strings.ContainsRune(p, 0):
			l.Refuse(name, fmt.Sprintf("has a line that is not understood: %.128q", line))
		case kind == "dev":
			if !slices.Contains(l.nodes, p) {
				l.nodes = append(l.nodes, p)
			}
		default:
			for _, match := range l.glob(path.Clean(p)) {
				l.add(kind, match)
			}
		}
	}
}

// add adds an entry. A path that was listed before keeps its kind.
func (l *lists) add(kind, name string) {
	if !slices.ContainsFunc(l.entries, func(e entry) bool { return e.path == name }) {
		l.entries = append(l.entries, entry{kind, name})
	}
}

// glob resolves a pattern, which may be in the last part of a path only.
func (l *lists) glob(pattern string) []string {
	dir, base := path.Split(pattern)
	if !strings.ContainsAny(base, "*?[") {
		return []string{pattern}
	}
	var matches []string
	for _, name := range l.Names(path.Clean(dir)) {
		if ok, err := path.Match(base, name); err == nil && ok {
			matches = append(matches, path.Join(dir, name))
		}
	}
	return matches
}

// kernelTrees are the trees of a container that no list may put anything in.
var kernelTrees = []string{"/proc", "/sys", "/dev"}

// take adds an entry. What this machine lacks is left out: the lists are for a family of machines.
func (l *lists) take(e entry) {
	inTree := func(d string) bool { return e.path == d || strings.HasPrefix(e.path, d+"/") }
	if e.path == "/" || slices.ContainsFunc(kernelTrees, inTree) {
		return
	}
	if strings.Contains(path.Base(e.path), ".so") && e.kind != "dir" {
		if e.kind == "sym" && l.Alias(e.path) {
			return
		}
		lib := driver.Library{Name: path.Base(e.path), Dir: path.Dir(e.path), Capabilities: driver.EveryCapability}
		if l.Library(e.path, lib, false) == nil {
			return
		}
	}
	l.Direct(e.path)
}
