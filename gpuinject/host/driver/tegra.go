package driver

import (
	"bytes"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
)

// csvDir holds the lists of what a container on a Tegra needs, which NVIDIA's Jetson
// packages install for its container runtime.
const csvDir = "/etc/nvidia-container-runtime/host-files-for-container.d"

// csvBase are the lists that every container gets (toolkit.md 6); of older releases
// each has one or more.
var csvBase = []string{"devices.csv", "drivers.csv", "l4t.csv"}

// Bounds of the lists. Those of JetPack 4 have about 1000 lines, all together.
const (
	maxCSV     = 1 << 20 // bytes a file
	maxEntries = 16384   // entries altogether, patterns resolved
)

// DiscoverTegra finds what the lists of a Tegra name: of every capability, since the
// lists do not tell them apart. all takes the lists of further packages too (CUDA,
// cuDNN, TensorRT of JetPack 4), which images ask for by NVIDIA_REQUIRE_JETPACK.
//
// Files and directories are given at their own paths. A link to a library that is
// listed itself is a further name of that one for the linker.
func DiscoverTegra(host config.Host, all bool) (*Files, error) {
	s, err := newSearch(host)
	if err != nil {
		return nil, err
	}
	defer s.close()
	s.files.Platform = "tegra"
	t := &tegraLists{search: s, placed: map[string]bool{}}
	names := csvBase
	if all {
		names = slices.DeleteFunc(s.names(csvDir), func(n string) bool { return !strings.HasSuffix(n, ".csv") })
	}
	for _, name := range names {
		t.read(path.Join(csvDir, name))
	}
	// Links last: what they lead to is then known.
	for _, kind := range []string{"lib", "dir", "sym"} {
		for _, e := range t.entries {
			if e.kind == kind {
				t.take(e)
			}
		}
	}
	t.data("/etc/nv_tegra_release")
	s.platformMissing()
	s.seal()
	return s.files, nil
}

// csvEntry is a line of a list, or one match of its pattern.
type csvEntry struct{ kind, path string }

// tegraLists is the state of one DiscoverTegra.
type tegraLists struct {
	*search
	entries []csvEntry
	placed  map[string]bool // destinations that are taken
}

// read reads one list: lines of "dev|dir|lib|sym, <path>".
func (t *tegraLists) read(name string) {
	fd, st, err := t.open(name)
	if err != nil {
		t.stamp(name, nil)
		return
	}
	defer unix.Close(fd)
	t.stamp(name, &st)
	if reason := unsafeFile(&st); reason != "" {
		t.refuse(t.host(name), reason)
		return
	}
	if st.Size > maxCSV {
		t.refuse(t.host(name), fmt.Sprintf("is larger than %d bytes", maxCSV))
		return
	}
	f, err := reopen(fd)
	if err != nil {
		t.refuse(t.host(name), "cannot be read: "+err.Error())
		return
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxCSV))
	if err != nil {
		t.refuse(t.host(name), "cannot be read: "+err.Error())
		return
	}
	t.files.Searched = append(t.files.Searched, t.host(name))
	for line := range bytes.Lines(data) {
		t.line(name, string(bytes.TrimSpace(line)))
	}
}

func (t *tegraLists) line(name, line string) {
	if line == "" || line[0] == '#' {
		return
	}
	kind, p, _ := strings.Cut(line, ",")
	kind, p = strings.TrimSpace(kind), strings.TrimSpace(p)
	switch {
	case !slices.Contains([]string{"dev", "dir", "lib", "sym"}, kind) || !path.IsAbs(p) || strings.ContainsRune(p, 0):
		t.refuse(t.host(name), fmt.Sprintf("has a line that is not understood: %.128q", line))
	case kind == "dev":
		if !slices.Contains(t.files.Nodes, p) {
			t.files.Nodes = append(t.files.Nodes, p)
		}
	default:
		for _, match := range t.glob(path.Clean(p)) {
			if len(t.entries) >= maxEntries {
				t.refuse(t.host(name), fmt.Sprintf("brings the lists to more than %d entries", maxEntries))
				return
			}
			t.entries = append(t.entries, csvEntry{kind, match})
		}
	}
}

// glob resolves a pattern, which may be in the last part of a path only.
func (t *tegraLists) glob(pattern string) []string {
	dir, base := path.Split(pattern)
	if !strings.ContainsAny(pattern, "*?[") {
		return []string{pattern}
	}
	if strings.ContainsAny(dir, "*?[") {
		t.refuse(t.host(pattern), "is a pattern of directories")
		return nil
	}
	var matches []string
	for _, name := range t.names(path.Clean(dir)) {
		if ok, err := path.Match(base, name); err == nil && ok {
			matches = append(matches, path.Join(dir, name))
		}
	}
	return matches
}

// own are the trees of a container that no list may put anything in.
var own = []string{"/proc", "/sys", "/dev"}

// take finds one entry and gives it its place. What is not there is left out: the
// lists are for a family of machines.
func (t *tegraLists) take(e csvEntry) {
	if t.placed[e.path] || e.path == "/" || slices.ContainsFunc(own, func(d string) bool { return e.path == d || strings.HasPrefix(e.path, d+"/") }) {
		return
	}
	if strings.Contains(path.Base(e.path), ".so") && e.kind != "dir" {
		if e.kind == "sym" && t.alias(e.path) {
			return
		}
		lib := Library{Name: path.Base(e.path), Dir: path.Dir(e.path), Capabilities: everyCapability}
		if t.library(e.path, lib) {
			t.placed[e.path] = true
			return
		}
	}
	t.data(e.path)
}

// alias makes a link to a library that was taken a further name of it.
func (t *tegraLists) alias(link string) bool {
	fd, st, err := t.open(link)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	host, _, err := t.name(fd)
	if err != nil {
		return false
	}
	i := slices.IndexFunc(t.files.Libraries, func(l Library) bool { return l.Path == host })
	if i < 0 {
		return false
	}
	l := &t.files.Libraries[i]
	if name := path.Base(link); name != l.Name && !slices.Contains(l.Links, name) {
		l.Links = append(l.Links, name)
	}
	t.stamp(link, &st)
	return true
}

// library takes a file that the linker is told of. It returns false for what is no
// library of this machine, which data may be.
func (t *tegraLists) library(found string, lib Library) bool {
	fd, st, err := t.open(found)
	if err != nil || st.Mode&unix.S_IFMT != unix.S_IFREG || unsafeFile(&st) != "" {
		if err == nil {
			unix.Close(fd)
		}
		return false
	}
	defer unix.Close(fd)
	host, inner, err := t.name(fd)
	if err != nil {
		return false
	}
	if _, reason := lib.inspect(fd, st.Size, false); reason != "" {
		return false
	}
	t.stamp(found, &st)
	t.stamp(inner, &st)
	lib.Path = host
	t.files.Libraries = append(t.files.Libraries, lib)
	return true
}

// data gives a file or a directory at its own path.
func (t *tegraLists) data(name string) {
	if t.placed[name] {
		return
	}
	fd, st, err := t.open(name)
	if err != nil {
		t.stamp(name, nil)
		return
	}
	defer unix.Close(fd)
	t.stamp(name, &st)
	reason := unsafeFile(&st)
	if st.Mode&unix.S_IFMT == unix.S_IFDIR {
		reason = unsafeDir(&st)
	}
	host, inner, err := t.name(fd)
	if err != nil {
		reason = err.Error()
	}
	if reason != "" {
		t.refuse(t.host(name), reason)
		return
	}
	t.stamp(inner, &st)
	t.placed[name] = true
	t.files.Data = append(t.files.Data, File{Path: host, Dest: name, Capabilities: everyCapability, Direct: true})
}
