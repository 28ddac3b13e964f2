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
	if _, err := os.Stat(source); err != nil {
		// A file of a driver that is gone: runc would fail for it.
		return atHome && NamesLibrary(base)
	}
	// The kernel loads the driver's firmware, no container does.
	firmware, _ := path.Match("gsp*.bin", base)
	firmware = firmware && strings.Contains(source, "/nvidia/")
	library := strings.HasSuffix(base, ".so."+f.Version) && isAny(path.Dir(source), f.Searched)
	if atHome && (firmware || library) {
		return true
	}
	var given []string
	for _, l := range f.Libraries {
		if atHome {
			given = append(given, l.Path)
		}
	}
	for _, b := range f.Binaries {
		if atHome || dest == path.Join("/usr/bin", b.Name) {
			given = append(given, b.Path)
		}
	}
	for _, d := range f.Data {
		if atHome || dest == d.Dest {
			given = append(given, d.Path)
		}
	}
	return isAny(source, given)
}

// isAny reports whether name is one of these files or directories, by any path.
func isAny(name string, list []string) bool {
	info, err := os.Stat(name)
	return err == nil && slices.ContainsFunc(list, func(other string) bool {
		o, err := os.Stat(other)
		return err == nil && os.SameFile(info, o)
	})
}
