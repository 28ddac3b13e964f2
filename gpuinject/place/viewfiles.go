package place

import (
	"path"
	"slices"
	"strings"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host/driver"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/ldcache"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/view"
)

// Directories of a view. 32-bit libraries have their own.
const (
	viewLib   = "lib64"
	viewLib32 = "lib"
	viewBin   = "bin"
	viewShare = "share"
	viewXorg  = "xorg"
)

func layOut(files driver.Files) view.Spec {
	spec := view.Spec{Driver: files.Key()}
	for _, l := range files.Libraries {
		if l.Dir == "" {
			spec.Files = append(spec.Files, view.File{Source: l.Path, Name: path.Join(LibraryDir(l), l.Name), Links: l.Links})
		}
	}
	for _, b := range files.Binaries {
		spec.Files = append(spec.Files, view.File{Source: b.Path, Name: path.Join(viewBin, b.Name)})
	}
	for _, d := range files.Data {
		switch {
		case d.Data != nil:
			spec.Files = append(spec.Files, view.File{Data: d.Data, Name: dataName(d)})
		case !d.Direct:
			spec.Files = append(spec.Files, view.File{Source: d.Path, Name: dataName(d)})
		}
	}
	return spec
}

// dataName returns the name of a data file in the view: its path in the container without the first
// component or two.
func dataName(d driver.File) string {
	if !path.IsAbs(d.Dest) {
		return path.Join(viewXorg, d.Dest)
	}
	return path.Join(viewShare, strings.TrimPrefix(strings.TrimPrefix(d.Dest, "/etc"), "/usr/share"))
}

// LibraryDir returns the directory of a library in the view.
func LibraryDir(l driver.Library) string {
	if l.Bits == 32 {
		return path.Join(viewLib32, l.Subdir)
	}
	return path.Join(viewLib, l.Subdir)
}

// nameInView returns the path of a library in the view: by name if it has a link with that name.
func nameInView(l driver.Library, name string) string {
	if !slices.Contains(l.Links, name) {
		name = l.Name
	}
	return path.Join(LibraryDir(l), name)
}

// libraryFile returns the path of a library in the container: in the view, which is at dir, or at
// its own path, which has no links.
func libraryFile(dir string, l driver.Library, name string) string {
	if l.Dir != "" {
		return path.Join(l.Dir, l.Name)
	}
	return path.Join(dir, nameInView(l, name))
}

// loaderNames returns the names by which a program can ask the loader for a library.
func loaderNames(l driver.Library) (names []string) {
	all := append([]string{l.SOName}, l.Links...)
	if l.Dir != "" {
		all = append(all, l.Name)
	}
	for _, name := range all {
		if name != "" && l.Subdir == "" && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}

// loaderEntries returns the names by which a program can ask the loader for the driver's libraries,
// and the directories of these libraries. A library in a subdirectory (vdpau, gbm) is opened by its
// path.
func loaderEntries(viewDir string, files driver.Files) (entries []ldcache.Entry, dirs []string) {
	dirs = []string{path.Join(viewDir, viewLib)}
	for _, l := range files.Libraries {
		if l.Subdir != "" {
			continue
		}
		if dir := path.Dir(libraryFile(viewDir, l, l.Name)); !slices.Contains(dirs, dir) {
			dirs = append(dirs, dir)
		}
		for _, name := range loaderNames(l) {
			entries = append(entries, ldcache.Entry{Name: name, Path: libraryFile(viewDir, l, name), Flags: l.Flags})
		}
	}
	return entries, dirs
}
