package driver

import (
	"os"
	"path"
	"slices"
	"strings"
)

// InRoot returns a host path as it is in the driver root, or itself if it is elsewhere.
func (f Files) InRoot(name string) string {
	for _, root := range []string{f.Root, f.RealRoot} {
		if rest, ok := strings.CutPrefix(name, path.Clean(root)+"/"); ok && root != "/" && root != "" {
			return "/" + rest
		}
	}
	return name
}

// IsMounted reports whether the mount of a host file at dest is one of NVIDIA's CDI specifications:
// a file of this driver at the place that nvidia-ctk gives it.
func (f Files) IsMounted(source, dest string) bool {
	base, atHome := path.Base(source), f.InRoot(source) == dest
	if base != path.Base(dest) {
		return false
	}
	info, err := os.Stat(source)
	if err != nil {
		// A file of a driver that is gone: runc would fail for it.
		return atHome && NamesLibrary(base)
	}
	// The kernel loads the driver's firmware, no container does.
	firmware, _ := path.Match("gsp*.bin", base)
	firmware = firmware && strings.Contains(source, "/nvidia/")
	library := strings.HasSuffix(base, ".so."+f.Version)
	if atHome && (firmware || library && f.isSearched(path.Dir(source))) {
		return true
	}
	is := func(name, place string) bool { return (atHome || dest == place) && isFile(info, name) }
	return slices.ContainsFunc(f.Libraries, func(l Library) bool { return is(l.Path, "") }) ||
		slices.ContainsFunc(f.Binaries, func(b Binary) bool { return is(b.Path, path.Join("/usr/bin", b.Name)) }) ||
		slices.ContainsFunc(f.Data, func(d File) bool { return is(d.Path, d.Dest) })
}

// isSearched reports whether a directory is one of Searched, by any path.
func (f Files) isSearched(dir string) bool {
	info, err := os.Stat(dir)
	return err == nil && slices.ContainsFunc(f.Searched, func(d string) bool { return isFile(info, d) })
}

func isFile(info os.FileInfo, name string) bool {
	other, err := os.Stat(name)
	return err == nil && os.SameFile(info, other)
}
