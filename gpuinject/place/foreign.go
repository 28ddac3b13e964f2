package place

import (
	"path"
	"slices"
	"strings"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/image"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/request"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/verdict"
)

// maxSearched bounds the directories that are searched for libraries, maxFound what is opened in each.
const maxSearched, maxFound = 32, 8

// warnOfForeign warns of libraries of the image that its loader takes before those of the driver
// that have the same name: LD_PRELOAD and LD_LIBRARY_PATH go before its cache. Libraries of two
// drivers in one process fail, and a stub of libcuda finds no GPU. The variables are the
// container's, so they are left alone. beside are the files that the container gets outside the view.
func warnOfForeign(c Container, root RootFS, img image.Image, view View, beside []Bind) (log verdict.Log) {
	if img.LibC == "" {
		return log
	}
	var names []string
	for _, l := range view.Files.Libraries {
		names = append(names, loaderNames(l)...)
	}
	for _, s := range searchedFirst(c.Spec.Process.Env, names) {
		at, err := root.Target(s.dir)
		if err != nil || IsBelow(at, view.Dir) || root.Hides(at) || img.Compat.Use && at == img.Compat.Dir {
			continue
		}
		if m, covered := root.Covering(at); covered {
			log.Note("%s: the container mounts %s there, in which the driver's libraries are not looked for", s.variable, request.Quote(m.Destination))
			continue
		}
		found := slices.DeleteFunc(root.Libraries(at, s.names, maxFound), func(name string) bool {
			file, _ := root.Target(path.Join(at, name))
			return IsBelow(file, view.Dir) || slices.ContainsFunc(beside, func(b Bind) bool { return b.Destination == path.Join(at, name) })
		})
		slices.Sort(found)
		if len(found) > 0 {
			log.Warn("programs load %s of the image from %s, which %s names, in place of the driver's: remove that directory from the variable, or the files from the image",
				strings.Join(found, ", "), request.Quote(at), s.variable)
		}
	}
	return log
}

// searched is a directory in which a loader looks for names before its cache, because of a variable.
type searched struct {
	variable, dir string
	names         []string
}

// searchedFirst returns where the loader looks for names of libraries before its cache: the files of
// LD_PRELOAD, then the directories of LD_LIBRARY_PATH, each after those for newer processors in it.
// The last of repeated variables counts. Relative directories are left out.
func searchedFirst(env, names []string) (list []searched) {
	values := map[string]string{}
	for _, entry := range env {
		name, value, _ := strings.Cut(entry, "=")
		values[name] = value
	}
	const preload, libraryPath = "LD_PRELOAD", "LD_LIBRARY_PATH"
	for _, file := range strings.FieldsFunc(values[preload], func(r rune) bool { return r == ':' || r == ' ' }) {
		if path.IsAbs(file) && slices.Contains(names, path.Base(file)) {
			list = append(list, searched{preload, path.Dir(file), []string{path.Base(file)}})
		}
	}
	for _, dir := range strings.FieldsFunc(values[libraryPath], func(r rune) bool { return r == ':' || r == ';' }) {
		if !path.IsAbs(dir) {
			continue
		}
		for _, level := range hwcaps {
			list = append(list, searched{libraryPath, path.Join(dir, level), names})
		}
		list = append(list, searched{libraryPath, path.Clean(dir), names})
	}
	return list[:min(len(list), maxSearched)]
}

// hwcaps are the directories in which glibc looks first, below each other one (2.33).
var hwcaps = []string{"glibc-hwcaps/x86-64-v4", "glibc-hwcaps/x86-64-v3", "glibc-hwcaps/x86-64-v2"}
