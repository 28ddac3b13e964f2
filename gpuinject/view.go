package gpuinject

import (
	"slices"

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
