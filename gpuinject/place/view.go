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
var viewOptions = []string{"rbind", "ro", "nosuid", "nodev", "rprivate"}

// View holds the driver's files that a container gets.
type View struct {
	Files driver.Files
	// Spec is the layout of the files that are in the view, Root its path on the host.
	Spec view.Spec
	Root string
}

// newView lays out the driver's files in a view and mounts it.
func newView(stateDir string, files driver.Files) Changes {
	v := View{Files: files, Spec: layOut(files)}
	v.Root = view.Path(stateDir, v.Spec)
	return Changes{View: &v, Mounts: []Mount{{v.Root, ViewDir, viewOptions, true}}}
}

// checkReplaced refuses a container whose driver's files were replaced on the host by those of
// another version, unless the view with its files is still there and holds all of them as they were.
func checkReplaced(v View) (ch Changes, err error) {
	if v.Files.Replaced == "" {
		return ch, nil
	}
	whole := view.IsMounted(v.Root)
	for _, f := range v.Spec.Files {
		var st unix.Stat_t
		err := unix.Lstat(path.Join(v.Root, f.Name), &st)
		whole = whole && err == nil && (f.Source == "" || v.Files.StampOf(f.Source).IsContentOf(st))
	}
	outside := slices.ContainsFunc(v.Files.Libraries, func(l driver.Library) bool { return l.Dir != "" }) ||
		slices.ContainsFunc(v.Files.Data, func(d driver.File) bool { return d.Direct })
	if !whole || outside {
		return ch, verdict.Precondition("%s", v.Files.Replaced)
	}
	ch.Warn("the driver's files were replaced, and the container gets those of the loaded module, which are still mounted, until the next reboot: %s", v.Files.Replaced)
	return ch, nil
}
