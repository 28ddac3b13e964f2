package driver

import (
	"os"
	"path"
	"slices"
	"strings"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/view"
)

// IsMounted reports whether the mount of a host file at dest comes from a CDI specification of this
// driver: a file of the driver at the place where nvidia-ctk or nvidia-shimctl puts it.
func (f Files) IsMounted(source, dest string) bool {
	base, atHome := path.Base(source), f.InRoot(source) == dest
	below := func(dir string) bool { return strings.HasPrefix(dest, dir+"/") }
	// run-args puts libraries where the view would be.
	info, err := os.Stat(source)
	is := func(name string) bool { return err == nil && isFile(info, name) }
	isLibrary := func(l Library) bool { return is(l.Path) }
	if slices.ContainsFunc(slices.Concat(LoaderDirs(64), LoaderDirs(32), []string{view.Dir}), below) &&
		(err != nil && namesLibrary(base) || slices.ContainsFunc(f.Libraries, isLibrary)) {
		return true
	}
	if err != nil {
		// A file of a driver that is gone: runc would fail to mount it.
		return atHome && namesLibrary(base)
	}
	// The kernel loads the driver's firmware, not the container.
	firmware, _ := path.Match("gsp*.bin", base)
	firmware = firmware && strings.Contains(source, "/nvidia/")
	library := strings.HasSuffix(base, ".so."+f.Version)
	if atHome && (firmware || library && f.isSearched(path.Dir(source))) {
		return true
	}
	return atHome && slices.ContainsFunc(f.Libraries, isLibrary) ||
		slices.ContainsFunc(f.Binaries, func(b Binary) bool { return (atHome || dest == "/usr/bin/"+b.Name) && is(b.Path) }) ||
		slices.ContainsFunc(f.Data, func(d File) bool { return (atHome || dest == d.Dest) && is(d.Path) })
}

// isSearched reports whether a directory is one of Searched, by any path.
func (f Files) isSearched(dir string) bool {
	info, err := os.Stat(dir)
	same := func(d string) bool { return isFile(info, d) }
	return err == nil && slices.ContainsFunc(f.Searched, same)
}

func isFile(info os.FileInfo, name string) bool {
	other, err := os.Stat(name)
	return err == nil && os.SameFile(info, other)
}
