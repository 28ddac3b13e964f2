package gpuinject

import (
	"path"
	"slices"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host/device"
)

// Standalone is what a container needs of the host to have the same devices without the shim: for
// engines that are told on their command line.
type Standalone struct {
	Nodes []device.Node
	// Groups own nodes that only a group may open.
	Groups []uint32
	Files  []Bind
	// Omitted are places of files that only the shim makes, in a view or a bundle.
	Omitted []string
}

// Bind is a file or directory of the host, read-only at a place of the container.
type Bind struct {
	Source      string `json:"source"`
	Destination string `json:"destination"`
}

// Standalone lists what a plan gives as single files of the host: nothing of a view, which comes
// and goes with the containers of the shim. A library is there under each name by which it is asked
// for, for want of links.
func (p Plan) Standalone(c Container) Standalone {
	s := Standalone{Nodes: p.nodes, Groups: p.groups}
	bind := func(source, dest string) {
		if b := (Bind{source, dest}); !slices.Contains(s.Files, b) {
			s.Files = append(s.Files, b)
		}
	}
	for _, l := range p.files.Libraries {
		if l.Dir != "" {
			continue // among the mounts of the plan
		}
		names := l.Links
		if name, ok := pluginName(l); ok {
			names = []string{name}
		} else if !slices.Contains(names, l.SOName) {
			names = append([]string{l.SOName}, names...)
		}
		for _, name := range names {
			if name == "" {
				name = l.Name
			}
			bind(l.Path, path.Join(ViewDir, libDir(l), name))
		}
	}
	for _, b := range p.files.Binaries {
		bind(b.Path, path.Join("/usr/bin", b.Name))
	}
	for _, d := range p.files.Data {
		dest := d.Dest
		if !path.IsAbs(dest) {
			dest = path.Join("/usr/lib/xorg/modules", dest)
		}
		switch {
		case d.Direct: // among the mounts of the plan
		case d.Data != nil:
			s.Omitted = append(s.Omitted, dest)
		default:
			bind(d.Path, dest)
		}
	}
	for _, m := range p.Mounts {
		if m.Destination == ViewDir || slices.ContainsFunc(s.Files, func(b Bind) bool { return b.Destination == m.Destination }) {
			continue
		}
		// A path that is not absolute is below the bundle.
		if !path.IsAbs(m.Source) || isBelow(m.Source, path.Join(c.Config.Host.StateDir, "view")) {
			s.Omitted = append(s.Omitted, m.Destination)
			continue
		}
		bind(m.Source, m.Destination)
	}
	return s
}
