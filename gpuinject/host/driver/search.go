package driver

import (
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/openat"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/trusted"
)

// Search collects Files. Discover is the search on an ordinary host; other platforms build theirs
// from these methods. Paths are relative to the driver root.
type Search struct {
	*tree
	files  Files
	listed map[string][]string // results of Names
	read   map[string]bool     // directories and files that were read, by their names and without links
	seen   map[string]bool     // library files examined, by real path and name
	used   map[string]bool     // directories in which a library was found
	others []string            // host paths of libcuda and libnvidia-ml in other versions
	// cudaDirs are the directories of libcuda in the wanted version.
	cudaDirs map[string]bool
}

// NewSearch opens the driver root. The caller must close it.
func NewSearch(cfg config.Host, version string) (*Search, error) {
	t, err := openTree(cfg.DriverRoot)
	if err != nil {
		return nil, fmt.Errorf("find driver files: host.driver-root: %w", err)
	}
	return &Search{
		tree: t,
		files: Files{
			Format: format, Version: version, Root: cfg.DriverRoot, RealRoot: t.real, Extra: slices.Clone(cfg.DriverLibraries),
			Found: time.Now().UnixNano(), Problems: map[string]string{},
		},
		listed: map[string][]string{}, read: map[string]bool{}, seen: map[string]bool{}, used: map[string]bool{}, cudaDirs: map[string]bool{},
	}, nil
}

// Refuse records a path that was found but not used. The reason continues "it …".
func (s *Search) Refuse(name, reason string) {
	if r := (Refused{s.host(name), reason}); !slices.Contains(s.files.Refused, r) {
		s.files.Refused = append(s.files.Refused, r)
	}
}

// leaveOut records a library of the driver that containers do not get, although nothing is wrong
// with it. The reason continues the path.
func (s *Search) leaveOut(name, reason string) {
	if r := (Refused{s.host(name), reason}); !slices.Contains(s.files.LeftOut, r) {
		s.files.LeftOut = append(s.files.LeftOut, r)
	}
}

// open opens a file and records the stamps of its path and of its name, which may be a link, or its
// absence. The caller closes it.
func (s *Search) open(name string) (*file, error) {
	f, err := s.tree.open(name)
	if err != nil {
		s.stamp(name, unix.Stat_t{})
		return nil, err
	}
	s.stamp(f.inner, f.st)
	s.stamp(name, f.st)
	return f, nil
}

// find opens a file that passes the check and refuses one that does not. The caller closes the file
// if ok is true.
func (s *Search) find(name string, check func(*unix.Stat_t) error) (f *file, ok bool) {
	f, err := s.open(name)
	if err != nil {
		return nil, false
	}
	if err := check(&f.st); err != nil {
		s.Refuse(f.inner, err.Error())
		f.close()
		return nil, false
	}
	return f, true
}

// first returns the host path of the first usable file of this name in the directories.
func (s *Search) first(dirs []string, name string) (host string, ok bool) {
	for _, dir := range dirs {
		if !slices.Contains(s.Names(dir), name) {
			continue
		}
		if f, ok := s.find(path.Join(dir, name), trusted.RootFile); ok {
			f.close()
			return f.host, true
		}
	}
	return "", false
}

// maxNames limits the names of a directory that are looked at.
const maxNames = 1 << 20

// Names returns the sorted names in a directory that files may be taken from, nil if there is none.
// The stamp of the directory also covers the names that are not in it.
func (s *Search) Names(dir string) []string {
	if names, ok := s.listed[dir]; ok {
		return names
	}
	s.listed[dir] = nil
	f, ok := s.find(dir, searchable)
	if !ok {
		return nil
	}
	defer f.close()
	names, err := openat.ReadDir(f.fd, maxNames)
	if err != nil {
		s.keep(err)
		s.Refuse(dir, "cannot be listed: "+err.Error())
	}
	s.listed[dir] = names
	s.read[dir], s.read[f.inner] = true, true
	slices.Sort(s.listed[dir])
	return s.listed[dir]
}

// Exists reports whether there is anything at a path, and records the stamp of an absent one.
func (s *Search) Exists(name string) bool {
	fd, _, err := s.resolve(name)
	if err != nil {
		s.stamp(name, unix.Stat_t{})
		return false
	}
	unix.Close(fd)
	return true
}

// Read returns the content of a file, if there is one and it may be used.
func (s *Search) Read(name string, maxSize int64) ([]byte, bool) {
	f, ok := s.find(name, trusted.RootFile) // guard: root's files: driver's ld.so.cache
	if !ok {
		return nil, false
	}
	defer f.close()
	s.read[name], s.read[f.inner] = true, true
	data, err := openat.Read(f.fd, &f.st, maxSize)
	if err != nil {
		s.keep(err)
		s.Refuse(name, err.Error())
		return nil, false
	}
	return data, true
}

// Program takes a program from the first directory that has it. It returns false if none has.
func (s *Search) Program(b Binary, dirs []string) (ok bool) {
	if b.Path, ok = s.first(dirs, b.Name); ok {
		s.files.Binaries = append(s.files.Binaries, b)
	}
	return ok
}

// Direct adds a file or directory at its own path to every capability, if it may be used.
func (s *Search) Direct(name string) {
	if f, ok := s.find(name, usable); ok {
		f.close()
		s.files.Data = append(s.files.Data, File{Path: f.host, Dest: name, Capabilities: EveryCapability, Direct: true})
	}
}

// Alias adds a link as another name of the library that it leads to. It returns false if the link
// does not lead to a library that was taken.
func (s *Search) Alias(link string) bool {
	f, err := s.open(link)
	if err != nil {
		return false
	}
	defer f.close()
	i := slices.IndexFunc(s.files.Libraries, func(l Library) bool { return l.Path == f.host })
	if i < 0 {
		return false
	}
	l := &s.files.Libraries[i]
	if name := path.Base(link); name != l.Name && !slices.Contains(l.Links, name) {
		l.Links = append(l.Links, name)
	}
	return true
}

// Searched adds a directory or a list to Files.Searched.
func (s *Search) Searched(name string) {
	s.files.Searched = append(s.files.Searched, s.host(name))
}

// Expect notes whether the 64-bit library that a capability needs was found, by its name or SONAME.
// If problem is not empty, the capability is not available without the library, for that reason or
// because the library was refused.
func (s *Search) Expect(capability, name, problem string) {
	if slices.ContainsFunc(s.files.Libraries, func(l Library) bool { return (l.Name == name || l.SOName == name) && l.Bits == 64 }) {
		return
	}
	s.files.Missing = append(s.files.Missing, capability+": "+name)
	if problem == "" || s.files.Problems[capability] != "" {
		return
	}
	stem, _, _ := strings.Cut(name, ".so")
	for _, r := range s.files.Refused {
		if strings.HasPrefix(path.Base(r.Path), stem+".so") {
			driver := strings.TrimSpace("NVIDIA driver " + s.files.Version)
			problem = fmt.Sprintf("%s: %s was found at %s but refused: it %s", driver, name, r.Path, r.Reason)
			break
		}
	}
	s.files.Problems[capability] = problem
}

// stamp records the state of a path, or its absence if st is zero.
func (s *Search) stamp(name string, st unix.Stat_t) {
	if !slices.ContainsFunc(s.files.Stamps, func(x Stamp) bool { return x.Path == name }) {
		s.files.Stamps = append(s.files.Stamps, newStamp(name, st))
	}
}
