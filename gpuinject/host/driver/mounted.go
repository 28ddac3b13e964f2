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
	inRoot := f.InRoot(source)
	if path.Base(source) != path.Base(dest) {
		return false
	}
	info, err := os.Stat(source)
	if err != nil {
		// A file of a driver that is gone: runc would fail for it.
		return inRoot == dest && NamesLibrary(path.Base(source))
	}
	is := func(name string) bool {
		other, err := os.Stat(name)
		return err == nil && os.SameFile(info, other)
	}
	atHome := inRoot == dest
	if atHome && (isFirmware(source) || strings.HasSuffix(source, ".so."+f.Version) && f.searches(path.Dir(source))) {
		return true
	}
	return atHome && slices.ContainsFunc(f.Libraries, func(l Library) bool { return is(l.Path) }) ||
		slices.ContainsFunc(f.Binaries, func(b Binary) bool {
			return (atHome || dest == path.Join("/usr/bin", b.Name)) && is(b.Path)
		}) ||
		slices.ContainsFunc(f.Data, func(d File) bool { return (atHome || dest == d.Dest) && is(d.Path) })
}

// isFirmware reports whether a file is firmware of the driver, which the kernel loads and no
// container.
func isFirmware(name string) bool {
	base := path.Base(name)
	return strings.HasPrefix(base, "gsp") && strings.HasSuffix(base, ".bin") && strings.Contains(name, "/nvidia/")
}

// searches reports whether driver files are searched for in a directory.
func (f Files) searches(dir string) bool {
	info, err := os.Stat(dir)
	if err != nil {
		return false
	}
	return slices.ContainsFunc(f.Searched, func(searched string) bool {
		other, err := os.Stat(searched)
		return err == nil && os.SameFile(info, other)
	})
}
