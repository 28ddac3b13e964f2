package driver

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"path"
	"slices"
	"strings"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/ldcache"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/openat"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/trusted"
)

const cachePath = "/etc/ld.so.cache"

// maxCache bounds ld.so.cache, in bytes; 100,000 libraries need about 10 MiB.
const maxCache = 32 << 20

// libraries takes what ld.so.cache lists, in its order, because the host's own programs use that,
// and then what is in the directories. If a library is found twice, the first one wins.
func (s *Search) libraries(extra []string) {
	var dirs []string
	for _, entry := range s.cache() {
		s.library(entry)
		dirs = append(dirs, path.Dir(entry))
	}
	s.list(slices.Concat(dirs, extra, libraryDirs()))
	// A driver in a directory tree of its own has its 32-bit libraries beside the others.
	for _, prefix := range s.prefixes() {
		s.list([]string{path.Join(prefix, "lib"), path.Join(prefix, "lib32")})
	}
	s.gbm()
}

// cache returns the paths in ld.so.cache that may be driver libraries.
func (s *Search) cache() []string {
	data, ok := s.Read(cachePath, maxCache)
	if !ok {
		return nil
	}
	cache, err := ldcache.ParseCache(data)
	if err != nil {
		s.Refuse(cachePath, "cannot be read: "+err.Error())
		return nil
	}
	var paths []string
	for _, e := range cache.Entries {
		if path.IsAbs(e.Path) && s.isCandidate(e.Path) {
			paths = append(paths, path.Clean(e.Path))
		}
	}
	return paths
}

// list takes the libraries in directories and in their subdirectories for drivers. In sorted order
// libnvidia-egl-gbm.so.1 comes before the versions that it can name.
func (s *Search) list(dirs []string) {
	for _, parent := range dirs {
		for _, dir := range []string{parent, path.Join(parent, "vdpau")} {
			if _, listed := s.listed[dir]; listed || dir != parent && s.Names(parent) == nil {
				continue
			}
			names := s.Names(dir)
			if names != nil {
				s.Searched(dir)
			}
			for _, name := range names {
				if file := path.Join(dir, name); s.isCandidate(file) {
					s.library(file)
				}
			}
			s.beside(dir, names)
		}
	}
}

// beside takes the other libraries of the wanted version in a directory that has libcuda: a newer
// driver has libraries that no list here names.
func (s *Search) beside(dir string, names []string) {
	if !s.cudaDirs[dir] {
		return
	}
	for _, name := range names {
		stem, version, ok := SplitName(name)
		_, known := kindOf(stem)
		switch file := path.Join(dir, name); {
		case !ok || version != s.files.Version || !strings.HasPrefix(name, "lib"):
		case isNeverGiven(stem): // guard: root's files: libraries never given
			s.leaveOut(file, "containers never get it")
		case !known:
			s.library(file)
		}
	}
}

// library takes a file if it is a library of the wanted version.
func (s *Search) library(found string) {
	f, err := s.open(found)
	if err != nil {
		return
	}
	defer f.close()
	name, at := path.Base(f.inner), f.inner
	if !namesSame(path.Base(found), name) {
		name, at = path.Base(found), found
	}
	if s.seen[f.inner+"/"+name] {
		return
	}
	s.seen[f.inner+"/"+name] = true
	stem, version, _ := SplitName(name)
	k, ok := kindOf(stem)
	if !ok {
		k = kind{capabilities: computeAndG}
	}
	wanted := version == s.files.Version
	if k.own {
		wanted = version != "" && isNumeric(version)
	}
	switch {
	case wanted:
		lib := Library{Name: name, Capabilities: k.capabilities, Subdir: k.subdir}
		if err := s.take(f, path.Dir(found), lib, k.develop); err != nil {
			s.Refuse(at, err.Error())
		} else if stem == "libcuda" {
			s.cudaDirs[path.Dir(found)], s.cudaDirs[path.Dir(f.inner)] = true, true
		}
	case strings.Contains(version, ".") && (stem == "libcuda" || stem == "libnvidia-ml"):
		s.others = append(s.others, s.host(at))
	}
}

// namesSame reports whether the name of a file says more than the name by which it was found: the
// same library with its version. Otherwise the latter decides, whichever of them is a link: a store
// names files by their content (/store/2f8a).
func namesSame(found, file string) bool {
	stem, _, _ := SplitName(found)
	same, version, ok := SplitName(file)
	// guard: root's files: driver's version
	return ok && stem == same && strings.Contains(version, ".") && isNumeric(version)
}

// isCandidate reports whether a file may be a library of the driver in the wanted version, so that
// it has to be opened: a known name can be a link to one.
func (s *Search) isCandidate(file string) bool {
	stem, version, ok := SplitName(path.Base(file))
	_, named := kinds[stem]
	_, known := kindOf(stem)
	return ok && (named || known && version == s.files.Version)
}

// take adds a library that was found in dir, unless there is already one for the same programs.
// Libraries with a place of their own are all taken. An error says why the library is not taken.
func (s *Search) take(f *file, dir string, lib Library, develop bool) error {
	if err := trusted.RootFile(&f.st); err != nil { // guard: root's files: driver's libraries
		return err
	}
	lib.Path = f.host
	if err := lib.inspect(f); err != nil {
		return err
	}
	lib.link(develop)
	same := func(l Library) bool {
		return l.Bits == lib.Bits && cmp.Or(l.SOName, l.Name) == cmp.Or(lib.SOName, lib.Name)
	}
	if i := slices.IndexFunc(s.files.Libraries, same); lib.Dir == "" && i >= 0 {
		if l := &s.files.Libraries[i]; l.Path == lib.Path && l.Name != lib.Name && !slices.Contains(l.Links, lib.Name) {
			l.Links = append(l.Links, lib.Name) // programs may load it by this name
		}
		return nil
	}
	s.used[dir] = true
	s.files.Libraries = append(s.files.Libraries, lib)
	return nil
}

// inspect reads the ELF headers. An error says why the file is not a library for this machine.
func (l *Library) inspect(f *file) error {
	r, err := openat.Reader(f.fd, &f.st, math.MaxInt64)
	if err != nil {
		f.tree.keep(err)
		return fmt.Errorf("cannot be opened: %w", err)
	}
	defer r.Close()
	e, err := ldcache.ReadELF(r, f.st.Size)
	if err != nil {
		return fmt.Errorf("is not a shared library: %w", err)
	}
	switch {
	case ldcache.ABI64.Matches(e):
		l.Bits, l.Flags = 64, ldcache.ABI64.Flags
	case ldcache.ABI32.Matches(e):
		l.Bits, l.Flags = 32, ldcache.ABI32.Flags
	default:
		return fmt.Errorf("is for another machine (%v, %v)", e.Class, e.Machine)
	}
	if strings.ContainsAny(e.SOName, "/\x00") || e.SOName == "." || e.SOName == ".." {
		return errors.New("has a SONAME that is no file name")
	}
	l.SOName = e.SOName
	return nil
}

func (l *Library) link(develop bool) {
	stem, _, _ := SplitName(l.Name)
	links := []string{l.SOName}
	if develop {
		links = append(links, stem+".so")
	}
	if stem == "libGLX_nvidia" {
		links = append(links, "libGLX_indirect.so.0")
	}
	for _, name := range links {
		if name != "" && name != l.Name && !slices.Contains(l.Links, name) {
			l.Links = append(l.Links, name)
		}
	}
}

// gbm adds gbm/nvidia-drm_gbm.so, the name under which Mesa's loader asks for libnvidia-allocator;
// NVIDIA's installer makes it a link.
func (s *Search) gbm() {
	for _, lib := range slices.Clone(s.files.Libraries) {
		if strings.HasPrefix(lib.Name, "libnvidia-allocator.so.") {
			s.files.Libraries = append(s.files.Libraries, Library{
				Path: lib.Path, Name: "nvidia-drm_gbm.so", SOName: lib.SOName,
				Capabilities: graphics, Bits: lib.Bits, Subdir: "gbm", Flags: lib.Flags,
			})
		}
	}
}

// prefixes returns the directories above the library directories that were used, if the driver has
// a directory tree of its own: /usr/local/nvidia of /usr/local/nvidia/lib64.
func (s *Search) prefixes() []string {
	var list []string
	for dir := range s.used {
		prefix, base := path.Dir(dir), path.Base(dir)
		if (base == "lib64" || base == "lib") && prefix != "/" && prefix != "/usr" {
			list = append(list, prefix)
		}
	}
	slices.Sort(list)
	return slices.Compact(list)
}

// Library takes one library whose name does not contain the driver's version. An error says why it
// was not taken, and is fs.ErrNotExist if there is none.
func (s *Search) Library(name string, lib Library, develop bool) error {
	f, err := s.open(name)
	if err != nil {
		return err
	}
	defer f.close()
	return s.take(f, path.Dir(name), lib, develop)
}
