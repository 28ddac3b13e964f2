package driver

import (
	"errors"
	"path"
	"slices"
	"strings"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
)

// Library is a shared library of the driver.
type Library struct {
	Path string // the real file on the host, without links
	Name string // in the container: libcuda.so.580.159.04
	// SOName is the name that programs are linked to, libcuda.so.1; it may equal Name or be empty.
	SOName string `json:",omitempty"`
	// Links are more names to create beside it: the SONAME, the .so link that compilers use,
	// libGLX_indirect.so.0.
	Links []string `json:",omitempty"`
	// Capabilities that the file belongs to. For adds implied capabilities.
	Capabilities []string
	Bits         int // 64 or 32
	// Subdir is where it belongs below a library directory: "", "vdpau", "gbm" or "nvidia/wine".
	// Only libraries without one belong in ld.so.cache.
	Subdir string `json:",omitempty"`
	Flags  int32  // in ld.so.cache
	// Dir is the directory in the container where the file must be; "" means the view.
	Dir string `json:",omitempty"`
}

// File is a data file, or a directory of them, with a fixed place in the container.
type File struct {
	// Path is the real file on the host, "" if the host lacks it.
	Path string
	// Dest is its path in the container. A relative one is below the directory in which the X
	// server of the image has its modules.
	Dest         string
	Capabilities []string
	// Direct files are mounted on their own and are not in the view: directories, and files that do
	// not come with the driver or can change without it.
	Direct bool `json:",omitempty"`
	// Data, if not nil, is the content that the container gets instead of the host's file.
	Data []byte `json:",omitempty"`
	// Copies are other paths where images may have a copy of this file. An existing copy is covered
	// instead of Dest, so that nothing is listed twice.
	Copies []string `json:",omitempty"`
	// Needs, if not empty, lists libraries, absolute or in the image's library directory: an image
	// with none of them has no use for the file.
	Needs []string `json:",omitempty"`
}

// Binary is a program of the driver.
type Binary struct {
	Path, Name   string // the real file on the host; the base name in the container
	Capabilities []string
}

// Refused is a file or directory that was found but not used.
type Refused struct {
	// Path is the host path, or the path in the driver root if the file could not be resolved.
	Path   string `json:"path"`
	Reason string `json:"reason"`
}

// Files are the driver files of a host. The zero value has none.
type Files struct {
	Format  int
	Version string // of the loaded kernel module, "" without one
	// Root and Extra are the settings of the search. RealRoot is Root without links.
	Root, RealRoot string
	Extra          []string `json:",omitempty"`
	Libraries      []Library
	Binaries       []Binary
	Data           []File
	// Nodes are paths and patterns below /dev, on a host whose driver comes with a list of its
	// device nodes.
	Nodes []string `json:",omitempty"`
	// Searched are the library directories that exist, as host paths.
	Searched []string
	// Missing lists absent libraries without which a capability is of little use: "graphics:
	// libGLX_nvidia.so.580.159.04".
	Missing  []string
	Problems map[string]string // why a capability is not available, by capability
	Refused  []Refused
	// LeftOut are libraries of the driver that containers never get, or that the driver's own list
	// has and no list here.
	LeftOut []Refused `json:",omitempty"`
	// Others are libraries libcuda and libnvidia-ml of other versions.
	Others []string `json:",omitempty"`
	// Replaced, in a list that was kept, says that the files have gone and those of another version
	// took their place. They may still be in a view.
	Replaced string  `json:"-"`
	Stamps   []Stamp // the files and places that the search looked at
	// Places are the paths that Fresh compares, Sum the checksum of their stamps, "" if one of them
	// was changed just before the search. Absent are paths at which nothing may be.
	Places, Absent []string
	Sum            string
	Found          int64 // when the search began, in nanoseconds since 1970
	// Only, if not nil, are the capabilities to which Short has reduced the list.
	Only []string `json:",omitempty"`
	// Identity is a checksum of the states of Libraries, Binaries and Data, of which a view is
	// made. Directories and ld.so.cache are not included: they change with every package that the
	// host installs.
	Identity string
}

// Key identifies the content of a view of these files.
func (f Files) Key() string { return f.Version + "-" + f.Identity }

// implied adds the capabilities whose libraries others need: video decodes with CUDA, and a display
// shows what graphics draws.
func implied(caps []string) []string {
	caps = slices.Clone(caps)
	if slices.Contains(caps, config.Video) {
		caps = append(caps, config.Compute)
	}
	if slices.Contains(caps, config.Display) {
		caps = append(caps, config.Graphics)
	}
	return caps
}

// For returns the files of a container with these capabilities. 32-bit libraries need compat32
// besides their own capability. Lists of the result may share memory with f.
func (f Files) For(caps []string) Files {
	want := implied(caps)
	has := func(have, want []string) bool {
		return slices.ContainsFunc(have, func(c string) bool { return slices.Contains(want, c) })
	}
	f.Libraries = slices.DeleteFunc(slices.Clone(f.Libraries), func(l Library) bool {
		return !has(l.Capabilities, want) || l.Bits == 32 && !slices.Contains(caps, config.Compat32)
	})
	f.Data = slices.DeleteFunc(slices.Clone(f.Data), func(d File) bool { return !has(d.Capabilities, want) })
	// Libraries and data are implied, programs are not: video needs no MPS server.
	f.Binaries = slices.DeleteFunc(slices.Clone(f.Binaries), func(b Binary) bool { return !has(b.Capabilities, caps) })
	return f
}

// Short returns what a container with these capabilities needs of the list. It is as fresh as the
// list.
func (f Files) Short(caps []string) Files {
	want := implied(caps)
	s := f.For(caps)
	s.Only = slices.Clone(caps)
	s.Refused, s.LeftOut, s.Others, s.Stamps, s.Searched = f.RefusedFor(caps), nil, nil, nil, nil
	s.Missing, s.Problems = nil, map[string]string{}
	for _, m := range f.Missing {
		if capability, _, _ := strings.Cut(m, ": "); slices.Contains(want, capability) {
			s.Missing = append(s.Missing, m)
		}
	}
	for _, c := range want {
		if text, ok := f.Problems[c]; ok {
			s.Problems[c] = text
		}
	}
	return s
}

// RefusedFor returns the refused libraries of these capabilities of which no 64-bit copy is given.
func (f Files) RefusedFor(caps []string) (list []Refused) {
	want := implied(caps)
	for _, r := range f.Refused {
		name := path.Base(r.Path)
		stem, version, _ := SplitName(name)
		wanted := version == f.Version && slices.ContainsFunc(Capabilities(stem), func(c string) bool { return slices.Contains(want, c) })
		if wanted && !slices.ContainsFunc(f.Libraries, func(l Library) bool { return l.Name == name && l.Bits == 64 }) {
			list = append(list, r)
		}
	}
	return list
}

// Check returns an error if one of these capabilities is not available: libcuda for compute and
// video, or libnvidia-ml for utility, is absent, refused, or of another version than the loaded
// kernel module ("Driver/library version mismatch" of NVML).
func (f Files) Check(caps []string) error {
	for _, c := range implied(caps) {
		if text, ok := f.Problems[c]; ok {
			return errors.New(text)
		}
	}
	return nil
}

// StampOf returns the stamp of a host path, or the zero value.
func (f Files) StampOf(name string) Stamp {
	for _, s := range f.Stamps {
		if path.Join(f.RealRoot, s.Path) == name {
			return s
		}
	}
	return Stamp{}
}

// InRoot returns a host path relative to the driver root, or unchanged if it is elsewhere.
func (f Files) InRoot(name string) string {
	for _, root := range []string{f.Root, f.RealRoot} {
		if rest, ok := strings.CutPrefix(name, path.Clean(root)+"/"); ok && root != "/" && root != "" {
			return "/" + rest
		}
	}
	return name
}
