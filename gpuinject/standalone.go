package gpuinject

import (
	"cmp"
	"path"
	"slices"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host/device"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/place"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/view"
)

// Standalone lists what a container needs from the host to have the same devices without the shim,
// for engines that take this on their command line.
type Standalone struct {
	Nodes []device.Node
	// Groups own nodes that only a group may open.
	Groups []uint32
	// Libraries are those that the shim has in a view, Files all others.
	Libraries []StandaloneLibrary
	Files     []place.Bind
	// Omitted lists the destinations of files that only the shim creates, in a view or a bundle.
	Omitted []string
}

// StandaloneLibrary is a library of the driver under one of the names that programs use.
type StandaloneLibrary struct {
	place.Bind // at the place that it has in a view
	Bits       int
	// Name is the path below a directory of libraries: "libcuda.so.1", "vdpau/libvdpau_nvidia.so.1".
	Name string
}

// Standalone lists the contents of a plan as single files of the host. It uses nothing from a view,
// because views come and go with the shim's containers. A library is listed under each name that
// programs use, because there are no links.
func (p Plan) Standalone() Standalone {
	s := Standalone{Nodes: p.Changes.Nodes, Groups: p.Changes.Groups}
	if p.Changes.View == nil {
		return s
	}
	files := p.Changes.View.Files
	for _, l := range files.Libraries {
		names := append([]string{cmp.Or(l.SOName, l.Name)}, l.Links...)
		if name, ok := place.PluginName(l); ok {
			names = []string{name}
		}
		for _, name := range names {
			dest := path.Join(view.Dir, place.LibraryDir(l), name)
			known := slices.ContainsFunc(s.Libraries, func(x StandaloneLibrary) bool { return x.Destination == dest })
			if l.Dir == "" && !known { // others are among the mounts
				s.Libraries = append(s.Libraries, StandaloneLibrary{place.Bind{Source: l.Path, Destination: dest}, l.Bits, path.Join(l.Subdir, name)})
			}
		}
	}
	for _, b := range files.Binaries {
		s.Files = append(s.Files, place.Bind{Source: b.Path, Destination: path.Join("/usr/bin", b.Name)})
	}
	for _, d := range files.Data {
		dest := d.Dest
		if !path.IsAbs(dest) {
			dest = path.Join("/usr/lib/xorg/modules", dest)
		}
		switch {
		case d.Direct: // among the mounts
		case d.Data != nil:
			s.Omitted = append(s.Omitted, dest)
		default:
			s.Files = append(s.Files, place.Bind{Source: d.Path, Destination: dest})
		}
	}
	has := func(dest string) bool {
		return slices.ContainsFunc(s.Files, func(b place.Bind) bool { return b.Destination == dest })
	}
	for _, m := range p.Changes.Mounts {
		switch {
		case m.Destination == view.Dir || has(m.Destination):
		case m.Made:
			s.Omitted = append(s.Omitted, m.Destination)
		default:
			s.Files = append(s.Files, place.Bind{Source: m.Source, Destination: m.Destination})
		}
	}
	return s
}
