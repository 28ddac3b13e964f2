package driver

import (
	"path"
	"strings"
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
