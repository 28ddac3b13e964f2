package driver

import (
	"cmp"
	"fmt"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
)

// Where Windows shows its driver to WSL2: what programs link with, and the driver
// store, a directory for each driver package of Windows.
const (
	wslLib   = "/usr/lib/wsl/lib"
	wslStore = "/usr/lib/wsl/drivers"
)

// maxStore bounds the packages in a driver store. Windows keeps about 700.
const maxStore = 16384

// wslOnly are the libraries of WSL2 that no other driver has, by stem; all know the
// driver store by dxcore.
var wslOnly = map[string][]string{
	"libdxcore":           everyCapability,
	"libcuda_loader":      compute,
	"libnvdxgdmal":        compute,
	"libnvdxdlkernels":    compute,
	"libnvidia-ml_loader": utility,
	"libnvoptix_loader":   graphics,
	"libnvwgf2umx":        graphics,
	"libd3d12":            graphics,
	"libd3d12core":        graphics,
}

// everyCapability is that of what no part of the driver works without.
var everyCapability = []string{"compute", "display", "graphics", "ngx", "utility", "video"}

// DiscoverWSL finds the driver's files under WSL2. Their names carry no version.
//
// A program's libcuda.so.1 is a loader: it asks dxcore for the adapter, dxcore names
// the package in the driver store by the path that the store has on the host, and the
// loader opens the real library there. So the store's NVIDIA packages and the
// directory of loaders are given at their own paths, and the loaders in the view as
// well, like any driver's.
func DiscoverWSL(host config.Host) (*Files, error) {
	s, err := newSearch(host)
	if err != nil {
		return nil, err
	}
	defer s.close()
	s.files.Platform = "wsl"
	packages := s.wslPackages()
	dirs := []string{wslLib}
	if len(packages) == 1 {
		// Of several packages dxcore picks the adapter's; here nobody could.
		dirs = append(dirs, packages[0])
	}
	for _, dir := range dirs {
		s.wslLibraries(dir)
	}
	for _, dir := range append(slices.Clone(dirs), packages...) {
		if host, _, ok := s.file(path.Join(dir, "nvidia-smi")); ok {
			s.files.Binaries = append(s.files.Binaries, Binary{Path: host, Name: "nvidia-smi", Capabilities: utility})
			break
		}
	}
	for _, dir := range append([]string{wslLib}, packages...) {
		s.wslDirectory(dir)
	}
	s.platformMissing()
	s.seal()
	return s.files, nil
}

// wslPackages are NVIDIA's packages of the driver store, those with a libcuda, sorted.
func (s *search) wslPackages() []string {
	names := s.names(wslStore)
	if len(names) > maxStore {
		s.refuse(s.host(wslStore), fmt.Sprintf("has more than %d entries", maxStore))
		return nil
	}
	var packages []string
	for _, name := range names {
		// nv_dispi.inf_amd64_…, nvlti.inf_amd64_…: NVIDIA's names begin so.
		if !strings.HasPrefix(strings.ToLower(name), "nv") {
			continue
		}
		dir := path.Join(wslStore, name)
		if fd, _, err := s.open(path.Join(dir, "libcuda.so.1.1")); err == nil {
			unix.Close(fd)
			packages = append(packages, dir)
		}
	}
	return packages
}

// names lists a directory that files may be taken from, sorted; nil where it is not
// there. It is stamped.
func (s *search) names(dir string) []string {
	fd, st, usable := s.directory(dir)
	if !usable {
		return nil
	}
	defer unix.Close(fd)
	s.stamp(dir, &st)
	f, err := reopen(fd)
	if err != nil {
		s.refuse(s.host(dir), "cannot be listed: "+err.Error())
		return nil
	}
	defer f.Close()
	names, err := f.Readdirnames(-1)
	if err != nil {
		s.refuse(s.host(dir), "cannot be listed: "+err.Error())
		return nil
	}
	s.files.Searched = append(s.files.Searched, s.host(dir))
	slices.Sort(names)
	return names
}

// wslLibraries takes the libraries of one directory. libcuda.so, .so.1 and .so.1.1 are
// three files there with one SONAME: the longest name is taken, the others are links.
func (s *search) wslLibraries(dir string) {
	names := s.names(dir)
	slices.SortStableFunc(names, func(a, b string) int { return cmp.Compare(len(b), len(a)) })
	for _, name := range names {
		stem, version, ok := split(name)
		caps := wslOnly[stem]
		if caps == nil {
			caps = kinds[stem].capabilities
		}
		if !ok || caps == nil {
			continue
		}
		if version != "" && strings.Trim(version, "0123456789.") != "" {
			continue
		}
		s.platformLibrary(path.Join(dir, name), Library{Name: name, Capabilities: caps, Subdir: ""}, true)
	}
}

// platformLibrary takes one library whose name says nothing of the driver's version.
// It returns false where there is none, or none that may be given.
func (s *search) platformLibrary(found string, lib Library, develop bool) bool {
	fd, st, err := s.open(found)
	if err != nil {
		s.stamp(found, nil)
		return false
	}
	defer unix.Close(fd)
	host, inner, err := s.name(fd)
	if err != nil {
		s.refuse(s.host(found), err.Error())
		return false
	}
	s.stamp(found, &st)
	s.stamp(inner, &st)
	reason := unsafeFile(&st)
	if reason == "" {
		_, reason = lib.inspect(fd, st.Size, develop)
	}
	if reason != "" {
		s.refuse(host, reason)
		return false
	}
	lib.Path = host
	s.take(lib, path.Dir(found), false)
	return true
}

// wslDirectory gives a directory as it is, at its own path.
func (s *search) wslDirectory(dir string) {
	fd, st, usable := s.directory(dir)
	if !usable {
		return
	}
	defer unix.Close(fd)
	s.stamp(dir, &st)
	host, _, err := s.name(fd)
	if err != nil {
		s.refuse(s.host(dir), err.Error())
		return
	}
	s.files.Data = append(s.files.Data, File{Path: host, Dest: dir, Capabilities: everyCapability, Direct: true})
}

// platformExpected are the libraries that compute and utility cannot do without under
// WSL2 and on a Tegra, by SONAME. A Tegra need not have NVML.
var platformExpected = []struct {
	platform, capability, soname string
}{
	{"wsl", "compute", "libcuda.so.1"},
	{"wsl", "utility", "libnvidia-ml.so.1"},
	{"wsl", "compute", "libdxcore.so"},
	{"tegra", "compute", "libcuda.so.1"},
}

func (s *search) platformMissing() {
	for _, e := range platformExpected {
		if e.platform == s.files.Platform && !s.files.hasSOName(e.soname) {
			s.files.Missing = append(s.files.Missing, e.capability+": "+e.soname)
		}
	}
}

func (f *Files) hasSOName(soname string) bool {
	return slices.ContainsFunc(f.Libraries, func(l Library) bool { return (l.SOName == soname || l.Name == soname) && l.Bits == 64 })
}

// checkPlatform is Check where names carry no version.
func (f *Files) checkPlatform(caps []string) error {
	want := implied(caps)
	for _, e := range platformExpected {
		if e.platform != f.Platform || !slices.Contains(want, e.capability) || f.hasSOName(e.soname) {
			continue
		}
		stem, _, _ := strings.Cut(e.soname, ".so")
		for _, r := range f.Refused {
			if strings.HasPrefix(path.Base(r.Path), stem+".so") {
				return fmt.Errorf("NVIDIA driver: %s was found at %s but refused: it %s", e.soname, r.Path, r.Reason)
			}
		}
		if f.Platform == "wsl" {
			return fmt.Errorf("this is WSL2, but %s was not found in %s: install NVIDIA's driver for Windows there, restart WSL (wsl --shutdown), and see that nvidia-smi works", e.soname, path.Join(f.RealRoot, wslLib))
		}
		return fmt.Errorf("this is a Tegra, but no list in %s names %s, or it is not there: install the packages nvidia-l4t-core, nvidia-l4t-cuda and nvidia-l4t-init", path.Join(f.RealRoot, csvDir), e.soname)
	}
	return nil
}
