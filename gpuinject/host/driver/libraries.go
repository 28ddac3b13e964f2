package driver

import (
	"debug/elf"
	"errors"
	"io"
	"path"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/ldcache"
)

const cachePath = "/etc/ld.so.cache"

// maxCache bounds ld.so.cache, in bytes; 100,000 libraries need about 10 MiB.
const maxCache = 32 << 20

// libraries takes what ld.so.cache lists, in its order, because that is what the
// host's own programs use, and then what lies in the directories. Where a library
// is found twice the first wins.
func (s *search) libraries(extra []string) {
	var dirs []string
	for _, entry := range s.cache() {
		s.library(entry)
		dirs = append(dirs, path.Dir(entry))
	}
	dirs = append(dirs, extra...)
	dirs = append(dirs, libraryDirs()...)
	s.lists(dirs)
	s.elsewhere()
	// A driver with a tree of its own has its 32-bit libraries beside the others.
	for _, prefix := range s.prefixes() {
		s.lists([]string{path.Join(prefix, "lib"), path.Join(prefix, "lib32")})
	}
	s.gbm()
}

// lists looks at directories and what belongs to them.
func (s *search) lists(dirs []string) {
	for _, dir := range dirs {
		if s.stamped[dir] || !s.list(dir) {
			continue
		}
		for _, sub := range librarySubdirs {
			s.list(path.Join(dir, sub))
		}
	}
}

// cache returns the paths of ld.so.cache that may be driver libraries. A host
// without a cache or with a damaged one is still searched by directory.
func (s *search) cache() []string {
	fd, st, err := s.open(cachePath)
	if err != nil {
		s.stamp(cachePath, nil)
		return nil
	}
	defer unix.Close(fd)
	s.stamp(cachePath, &st)
	data, err := readCache(fd, &st)
	if err != nil {
		s.refuse(s.host(cachePath), err.Error())
		return nil
	}
	cache, err := ldcache.ParseCache(data)
	if err != nil {
		s.refuse(s.host(cachePath), "cannot be read: "+err.Error())
		return nil
	}
	var paths []string
	for _, e := range cache.Entries {
		if path.IsAbs(e.Path) && candidate(path.Base(e.Path), s.files.Version) {
			paths = append(paths, path.Clean(e.Path))
		}
	}
	return paths
}

func readCache(fd int, st *unix.Stat_t) ([]byte, error) {
	if reason := unsafeFile(st); reason != "" {
		return nil, errors.New(reason)
	}
	if st.Size > maxCache {
		return nil, errors.New("is larger than " + strconv.Itoa(maxCache) + " bytes")
	}
	f, err := reopen(fd)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, maxCache))
}

// list looks at every candidate of a directory. It returns false for a directory
// that does not exist, may not be used, or was listed by another name.
func (s *search) list(dir string) bool {
	fd, st, usable := s.directory(dir)
	if !usable {
		return false
	}
	defer unix.Close(fd)
	s.stamp(dir, &st)
	id := identity{uint64(st.Dev), st.Ino, ""} //nolint:unconvert // 32 bits on some architectures
	if s.listed[id] {
		return false
	}
	s.listed[id] = true
	f, err := reopen(fd)
	if err != nil {
		s.refuse(s.host(dir), "cannot be listed: "+err.Error())
		return false
	}
	defer f.Close()
	names, err := f.Readdirnames(-1)
	if err != nil {
		s.refuse(s.host(dir), "cannot be listed: "+err.Error())
		return false
	}
	s.files.Searched = append(s.files.Searched, s.host(dir))
	// Sorted, libnvidia-egl-gbm.so.1 comes before the versions that it can name.
	slices.Sort(names)
	for _, name := range names {
		if candidate(name, s.files.Version) {
			s.library(path.Join(dir, name))
		}
	}
	return true
}

// directory opens a directory and tells whether files may be taken from it; only
// then is the descriptor open, otherwise the reason is stamped.
func (s *search) directory(dir string) (int, unix.Stat_t, bool) {
	fd, st, err := s.open(dir)
	if err != nil {
		s.stamp(dir, nil)
		return -1, st, false
	}
	if reason := unsafeDir(&st); reason != "" {
		s.stamp(dir, &st)
		s.refuse(s.host(dir), reason)
		unix.Close(fd)
		return -1, st, false
	}
	return fd, st, true
}

// library looks at one file, by the path under which it was found, and takes it
// if it is a library of the wanted version.
func (s *search) library(found string) {
	fd, st, err := s.open(found)
	if err != nil {
		s.stamp(found, nil)
		return
	}
	defer unix.Close(fd)
	host, inner, err := s.name(fd)
	if err != nil {
		s.refuse(s.host(found), err.Error())
		return
	}
	id := identity{uint64(st.Dev), st.Ino, path.Base(host)} //nolint:unconvert // 32 bits on some architectures
	if s.seen[id] {
		return
	}
	s.seen[id] = true
	lib := Library{Path: host, Name: path.Base(host)}
	develop, ok := s.classify(&lib)
	if !ok {
		return
	}
	s.stamp(inner, &st)
	if reason := unsafeFile(&st); reason != "" {
		s.refuse(host, reason)
		return
	}
	tls, reason := lib.inspect(fd, st.Size, develop)
	if reason != "" {
		s.refuse(host, reason)
		return
	}
	s.take(lib, path.Dir(found), tls)
}

// classify decides by the real name whether this is a library of the wanted
// version, and for whom.
func (s *search) classify(lib *Library) (develop, ok bool) {
	stem, version, ok := split(lib.Name)
	if !ok {
		return false, false
	}
	k, known := kinds[stem]
	switch {
	case known && len(k.capabilities) == 0:
		return false, false
	case known && k.own:
		ok = version != "" && strings.Trim(version, "0123456789.") == ""
	case known || foreign(stem):
		ok = version == s.files.Version
	default:
		ok = false
	}
	if !ok {
		if (stem == "libcuda" || stem == "libnvidia-ml") && strings.Contains(version, ".") {
			s.files.Others = append(s.files.Others, lib.Path)
		}
		return false, false
	}
	lib.Capabilities, lib.Subdir, lib.Unknown = k.capabilities, k.subdir, !known
	if !known {
		// One library of the driver too many is better than a broken driver.
		lib.Capabilities = computeAndG
	}
	return k.develop, true
}

// inspect reads the ELF headers. It returns why the file is no library for this
// machine, or "". See ldcache.ELF for tls.
func (l *Library) inspect(fd int, size int64, develop bool) (tls bool, reason string) {
	f, err := reopen(fd)
	if err != nil {
		return false, "cannot be opened: " + err.Error()
	}
	defer f.Close()
	e, err := ldcache.ReadELF(f, size)
	if err != nil {
		return false, "is not a shared library: " + err.Error()
	}
	switch {
	case e.Class == elf.ELFCLASS64 && e.Machine == arch.machine64:
		l.Bits = 64
	case e.Class == elf.ELFCLASS32 && e.Machine == arch.machine32:
		l.Bits = 32
	default:
		return false, "is for another machine (" + e.Class.String() + ", " + e.Machine.String() + ")"
	}
	flags, ok := ldcache.FlagsFor(e.Class, e.Machine)
	if !ok {
		return false, "is for a machine that ld.so.cache does not know"
	}
	l.Flags = flags
	if strings.ContainsAny(e.SOName, "/\x00") || e.SOName == "." || e.SOName == ".." {
		return false, "has a SONAME that is no file name"
	}
	l.SOName = e.SOName
	l.link(develop)
	return e.TLSABI, ""
}

// link names the links that belong beside the library.
func (l *Library) link(develop bool) {
	stem, _, _ := split(l.Name)
	var links []string
	if l.SOName != "" {
		links = append(links, l.SOName)
	}
	if develop {
		links = append(links, stem+".so")
	}
	if stem == "libGLX_nvidia" {
		links = append(links, "libGLX_indirect.so.0")
	}
	for _, name := range links {
		if name != l.Name && !slices.Contains(l.Links, name) {
			l.Links = append(l.Links, name)
		}
	}
}

// take adds a library unless one for the same programs is there already. Of two
// libnvidia-tls, one of them in a directory tls, it is the one with the TLS ABI of
// today's systems (toolkit.md 4.1).
func (s *search) take(lib Library, dir string, tls bool) {
	name := lib.SOName
	if name == "" {
		name = lib.Name
	}
	key := strconv.Itoa(lib.Bits) + " " + name
	if s.have[key] {
		better := tls && !s.tls[key] && strings.HasPrefix(lib.Name, "libnvidia-tls.so.")
		if !better {
			return
		}
		s.files.Libraries = slices.DeleteFunc(s.files.Libraries, func(l Library) bool { return l.Bits == lib.Bits && l.Name == lib.Name })
	}
	s.have[key], s.tls[key] = true, tls
	s.used[dir] = true
	s.files.Libraries = append(s.files.Libraries, lib)
}

// gbm adds gbm/nvidia-drm_gbm.so, the name under which Mesa's loader asks for
// libnvidia-allocator; NVIDIA's installer makes a link of it.
func (s *search) gbm() {
	for _, lib := range slices.Clone(s.files.Libraries) {
		if strings.HasPrefix(lib.Name, "libnvidia-allocator.so.") {
			s.files.Libraries = append(s.files.Libraries, Library{
				Path: lib.Path, Name: "nvidia-drm_gbm.so", SOName: lib.SOName,
				Capabilities: graphics, Bits: lib.Bits, Subdir: "gbm", Flags: lib.Flags,
			})
		}
	}
}
