package place

import (
	"path"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host/driver"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/verdict"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/view"
)

// viewOptions are the mount options of the view, which is a tree of mounts.
var viewOptions = []string{"rbind", "ro", "nosuid", "nodev", "rprivate"} // guard: view: options of its mount

// newView lays out the driver's files in a view and mounts it at dir. It refuses files that were replaced
// on the host by those of another version, unless the view with them is still there and holds all of
// them as they were.
func newView(stateDir, dir string, files driver.Files) (ch Changes, err error) {
	v := View{Files: files, Spec: layOut(files), Dir: dir}
	v.Root = view.Path(stateDir, v.Spec)
	ch = Changes{View: &v, Mounts: []Mount{{v.Root, dir, viewOptions, true}}}
	if files.Replaced == "" {
		return ch, nil
	}
	whole := view.IsMounted(v.Root)
	for _, f := range v.Spec.Files {
		var st unix.Stat_t
		err := unix.Lstat(path.Join(v.Root, f.Name), &st)
		whole = whole && err == nil && (f.Source == "" || files.StampOf(f.Source).IsContentOf(st))
	}
	outside := slices.ContainsFunc(files.Libraries, func(l driver.Library) bool { return l.Dir != "" }) ||
		slices.ContainsFunc(files.Data, func(d driver.File) bool { return d.Direct })
	if !whole || outside {
		return ch, verdict.Precondition("%s", files.Replaced)
	}
	ch.Warn("the driver's files were replaced, and the container gets those of the loaded module, which are still mounted, until the next reboot: %s", files.Replaced)
	return ch, nil
}
