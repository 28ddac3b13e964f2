package gpuinject

import (
	"path"
	"slices"
	"strings"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host/driver"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/ldcache"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/view"
)

// ViewDir is where a container finds the driver: the PATH and LD_LIBRARY_PATH of CUDA images have
// always pointed there.
const ViewDir = "/usr/local/nvidia"

// Directories of a view. 32-bit libraries have one of their own.
const (
	viewLib   = "lib64"
	viewLib32 = "lib"
	viewBin   = "bin"
	viewShare = "share"
	viewXorg  = "xorg"
)

// viewSpec lays out the driver's files in a view. Libraries that the image's forward compatibility
// package brings itself are left out, so that no search path finds the host's first.
func viewSpec(files driver.Files, leaveOut []string) view.Spec {
	spec := view.Spec{Driver: files.Key()}
	for _, l := range files.Libraries {
		if l.Dir == "" && !isSupplied(l, leaveOut) {
			spec.Files = append(spec.Files, view.File{Source: l.Path, Name: path.Join(libDir(l), l.Name), Links: l.Links})
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

// listFiles records the files that the container gets.
func (p *Plan) listFiles(spec view.Spec, files driver.Files) {
	for _, f := range spec.Files {
		switch top, _, _ := strings.Cut(f.Name, "/"); top {
		case viewBin:
			p.Binaries = append(p.Binaries, path.Base(f.Name))
		case viewLib, viewLib32:
			p.Libraries = append(p.Libraries, path.Base(f.Name))
		}
	}
	for _, l := range files.Libraries {
		if l.Dir != "" {
			p.Libraries = append(p.Libraries, l.Name)
		}
	}
	slices.Sort(p.Libraries)
}

// dataName is the name of a data file in the view: its path in the container without the first
// component or two.
func dataName(d driver.File) string {
	if !path.IsAbs(d.Dest) {
		return path.Join(viewXorg, d.Dest)
	}
	return path.Join(viewShare, strings.TrimPrefix(strings.TrimPrefix(d.Dest, "/etc"), "/usr/share"))
}

// libraryName is the name of a library in the view: name if it has a link of that name there.
func libraryName(l driver.Library, name string) string {
	if !slices.Contains(l.Links, name) {
		name = l.Name
	}
	return path.Join(libDir(l), name)
}

func libDir(l driver.Library) string {
	if l.Bits == 32 {
		return path.Join(viewLib32, l.Subdir)
	}
	return path.Join(viewLib, l.Subdir)
}

// isSupplied reports whether the image itself supplies a library, by its SONAME.
func isSupplied(l driver.Library, sonames []string) bool {
	return l.Bits == 64 && slices.Contains(sonames, l.SOName)
}

// loaderEntries are the names by which a program can ask the loader for the driver's libraries, and
// the directories that they are in.
func loaderEntries(files driver.Files, leaveOut []string) (entries []ldcache.Entry, dirs []string) {
	dirs = []string{path.Join(ViewDir, viewLib)}
	for _, l := range files.Libraries {
		dir := path.Join(ViewDir, libDir(l))
		if l.Dir != "" {
			dir = l.Dir
		}
		if l.Subdir == "" && !slices.Contains(dirs, dir) {
			dirs = append(dirs, dir)
		}
		// A library in a subdirectory (vdpau, gbm) is opened by its path.
		if l.Subdir != "" || isSupplied(l, leaveOut) {
			continue
		}
		names := append([]string{l.SOName}, l.Links...)
		if l.Dir != "" { // at its own path, without its links
			names = append(names, l.Name)
		}
		var seen []string
		for _, name := range names {
			if name == "" || slices.Contains(seen, name) {
				continue
			}
			seen = append(seen, name)
			file := name
			if l.Dir != "" || !slices.Contains(l.Links, name) {
				file = l.Name
			}
			entries = append(entries, ldcache.Entry{Name: name, Path: path.Join(dir, file), Flags: l.Flags})
		}
	}
	return entries, dirs
}
