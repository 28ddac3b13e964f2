package gpuinject

import (
	"path"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host/driver"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/layout"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/view"
)

// ViewDir is where a container finds the driver.
const ViewDir = layout.ViewDir

// viewOptions are the mount options of the view, which is a tree of mounts.
var viewOptions = []string{"rbind", "ro", "nosuid", "nodev", "rprivate"}

// planView lays out the driver's files in a view and records them.
func planView(c Container, p *Plan) {
	for _, l := range p.files.Libraries {
		p.Libraries = append(p.Libraries, l.Name)
	}
	slices.Sort(p.Libraries)
	for _, b := range p.files.Binaries {
		p.Binaries = append(p.Binaries, b.Name)
	}
	p.view = layout.View(p.files)
	p.viewRoot = view.Path(c.Config.Host.StateDir, p.view)
	p.Mounts = []PlanMount{{Source: p.viewRoot, Destination: ViewDir, Options: viewOptions}}
}

// checkReplaced refuses a container whose driver's files were replaced on the host by those of
// another version, unless the view with its files is still there and holds all of them as they were.
func checkReplaced(p *Plan) error {
	if p.files.Replaced == "" {
		return nil
	}
	whole := view.IsMounted(p.viewRoot)
	for _, f := range p.view.Files {
		var st unix.Stat_t
		err := unix.Lstat(path.Join(p.viewRoot, f.Name), &st)
		whole = whole && err == nil && (f.Source == "" || p.files.StampOf(f.Source).IsContentOf(st))
	}
	outside := slices.ContainsFunc(p.files.Libraries, func(l driver.Library) bool { return l.Dir != "" }) ||
		slices.ContainsFunc(p.files.Data, func(d driver.File) bool { return d.Direct })
	if !whole || outside {
		return fail(Precondition, "%s", p.files.Replaced)
	}
	p.warn("the driver's files were replaced, and the container gets those of the loaded module, which are still mounted, until the next reboot: %s", p.files.Replaced)
	return nil
}
