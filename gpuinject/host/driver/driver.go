package driver

import (
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
)

// Library is a shared library of the driver.
type Library struct {
	// Path is the real file on the host, without links.
	Path string
	// Name is the name that it has in the container: libcuda.so.580.159.04.
	Name string
	// SOName is the name that programs are linked with, libcuda.so.1; it may equal
	// Name or be empty.
	SOName string `json:",omitempty"`
	// Links are further names to create beside it: the SONAME, the .so link that
	// compilers use, libGLX_indirect.so.0.
	Links []string `json:",omitempty"`
	// Capabilities are those that it belongs to. For knows what implies what.
	Capabilities []string
	// Bits is 64 or 32.
	Bits int
	// Subdir is where it belongs below a library directory: "", "vdpau", "gbm" or
	// "nvidia/wine".
	// Only libraries without one belong in ld.so.cache.
	Subdir string `json:",omitempty"`
	// Flags are its flags in ld.so.cache.
	Flags int32
	// Unknown says that only its name's beginning and version speak for it: a
	// library that is newer than this package.
	Unknown bool `json:",omitempty"`
	// Dir is the directory in the container where it must be under its name; "" for
	// the view. Only a Tegra's libraries have one.
	Dir string `json:",omitempty"`
}

// File is a data file, or a directory of them, that has one fixed place in the
// container.
type File struct {
	// Path is the real file on the host, "" for one that the host lacks.
	Path string
	// Dest is its path in the container. A relative one is below the directory in
	// which the X server of the image has its modules.
	Dest         string
	Capabilities []string
	// Direct files are mounted by themselves and are in no view: directories, and what
	// does not come with the driver or changes without it.
	Direct bool `json:",omitempty"`
	// Data, where not nil, is what the container gets in place of the host's file.
	Data []byte `json:",omitempty"`
	// Copies are further paths where images bring a copy of this file. One that is
	// there is covered in place of Dest, so that nothing is listed twice.
	Copies []string `json:",omitempty"`
	// Needs, where not empty, are libraries, absolute or in the image's library
	// directory: an image with none of them has no use for the file.
	Needs []string `json:",omitempty"`
}

// Binary is a program of the driver.
type Binary struct {
	// Path is the real file on the host; Name its base name in the container.
	Path, Name   string
	Capabilities []string
}

// Refused is a file or directory that was found and not taken.
type Refused struct {
	// Path is the host path, or the path in the driver root where the file could not
	// be resolved.
	Path   string
	Reason string
}

// Files are the driver files of a host. The zero value has none.
type Files struct {
	// Version is the version that the libraries were chosen by; empty for WSL2's and a
	// Tegra's, whose names carry none.
	Version string
	// Platform is "", "wsl" or "tegra".
	Platform string `json:",omitempty"`
	// Nodes are the paths and patterns below /dev that a Tegra's lists name.
	Nodes []string `json:",omitempty"`
	// Root and Extra are the settings that Discover used; RealRoot is Root without
	// links.
	Root, RealRoot string
	Extra          []string
	Libraries      []Library
	Binaries       []Binary
	Data           []File
	// Searched are the library directories that exist, as host paths.
	Searched []string
	// Missing are absent libraries that a capability is hardly of use without, as
	// "graphics: libGLX_nvidia.so.580.159.04".
	Missing []string
	// Others are host paths of libcuda and libnvidia-ml in other versions.
	Others []string
	// Refused are files that were found but may not be given to a container.
	Refused []Refused
	// Watched are the paths in the driver root that Fresh looks at, each behind one
	// letter that says how, and State is the sum of what was found there.
	Watched []string
	State   string
	// DesktopWatched and DesktopState are the same for files that only graphics,
	// display and ngx need.
	DesktopWatched []string
	DesktopState   string
	// Identity is the sum of the states of Libraries, Binaries and Data, which a view is made
	// of. Those of directories and of ld.so.cache change with every package that the
	// host installs, and the view need not.
	Identity string
	// Nested says that libcuda or libnvidia-ml is a mount of its own, as a container is
	// given them: this host is a container itself.
	Nested bool `json:",omitempty"`
	// Settled says that no stamped file changed so shortly before Discover that a
	// further change could carry the same time. Without it Fresh is false.
	Settled bool
}

// Discover finds the driver's files. Version is that of the loaded kernel module
// (device.Inventory.DriverVersion). That a library is absent is no error here: see
// Check.
func Discover(host config.Host, version string) (*Files, error) {
	if version == "" || strings.Trim(version, "0123456789.") != "" {
		return nil, fmt.Errorf("find driver files: %.256q is not a driver version", version)
	}
	s, err := newSearch(host)
	if err != nil {
		return nil, err
	}
	defer s.close()
	s.files.Version = version
	s.libraries(host.DriverLibraries)
	s.binaries(false)
	s.data(false)
	s.desktop = true
	s.binaries(true)
	s.data(true)
	s.xorg()
	s.wine()
	s.missing()
	s.seal()
	return s.files, nil
}

// search is the state of one Discover.
type search struct {
	*tree
	files   *Files
	start   time.Time
	stamps  []stamp
	stamped map[string]bool   // paths in the root that have a stamp
	seen    map[identity]bool // library files looked at
	listed  map[identity]bool // directories listed
	have    map[string]bool   // "64 libcuda.so.1": libraries taken
	tls     map[string]bool   // of these, the ones with today's TLS ABI
	used    map[string]bool   // directories that gave a library
	desktop bool              // what DesktopWatched is for is being looked for
	places  places            // of a host that has its driver elsewhere
}

// newSearch opens the driver root. The caller closes it.
func newSearch(host config.Host) (*search, error) {
	t, err := openTree(host.DriverRoot)
	if err != nil {
		return nil, fmt.Errorf("find driver files: host.driver-root: %w", err)
	}
	return &search{
		tree: t,
		files: &Files{
			Root: host.DriverRoot, RealRoot: t.real,
			Extra: slices.Clone(host.DriverLibraries), Settled: true,
		},
		start: time.Now(), stamped: map[string]bool{}, seen: map[identity]bool{}, listed: map[identity]bool{},
		have: map[string]bool{}, used: map[string]bool{}, tls: map[string]bool{},
	}, nil
}

func (s *search) refuse(path, reason string) {
	if r := (Refused{path, reason}); !slices.Contains(s.files.Refused, r) {
		s.files.Refused = append(s.files.Refused, r)
	}
}

// expected are the libraries that Missing reports, and of which Check requires
// those of compute and utility: server drivers come without the others.
var expected = []struct{ capability, stem string }{
	{"compute", "libcuda"},
	{"utility", "libnvidia-ml"},
	{"video", "libnvcuvid"},
	{"video", "libnvidia-encode"},
	{"graphics", "libGLX_nvidia"},
	{"graphics", "libEGL_nvidia"},
	{"ngx", "libnvidia-ngx"},
}

func (s *search) missing() {
	for _, e := range expected {
		if name := e.stem + ".so." + s.files.Version; !s.files.has(name) {
			s.files.Missing = append(s.files.Missing, e.capability+": "+name)
		}
	}
}

// has tells whether the 64-bit library is there.
func (f *Files) has(name string) bool {
	return slices.ContainsFunc(f.Libraries, func(l Library) bool { return l.Name == name && l.Bits == 64 })
}

// implied adds the capabilities whose libraries others need: video decodes with
// CUDA, and a display shows what graphics draws (toolkit.md 4.1).
func implied(caps []string) []string {
	caps = slices.Clone(caps)
	if slices.Contains(caps, "video") {
		caps = append(caps, "compute")
	}
	if slices.Contains(caps, "display") {
		caps = append(caps, "graphics")
	}
	return caps
}

// desktop tells whether these capabilities include one whose files are watched apart.
func desktop(caps []string) bool {
	return slices.ContainsFunc(caps, func(c string) bool { return c == "graphics" || c == "display" || c == "ngx" })
}

// For returns what a container with these capabilities gets. 32-bit libraries need
// compat32 besides their own capability. Lists of the result may share memory with f.
func (f *Files) For(caps []string) Files {
	want := implied(caps)
	wanted := func(have []string) bool {
		return slices.ContainsFunc(have, func(c string) bool { return slices.Contains(want, c) })
	}
	out := *f
	out.Libraries, out.Binaries, out.Data, out.Missing = nil, nil, nil, nil
	for _, l := range f.Libraries {
		if wanted(l.Capabilities) && (l.Bits == 64 || slices.Contains(caps, "compat32")) {
			out.Libraries = append(out.Libraries, l)
		}
	}
	// Libraries and data are implied, programs are not: video needs no MPS server.
	for _, b := range f.Binaries {
		if slices.ContainsFunc(b.Capabilities, func(c string) bool { return slices.Contains(caps, c) }) {
			out.Binaries = append(out.Binaries, b)
		}
	}
	for _, d := range f.Data {
		if wanted(d.Capabilities) {
			out.Data = append(out.Data, d)
		}
	}
	for _, m := range f.Missing {
		if capability, _, _ := strings.Cut(m, ":"); slices.Contains(want, capability) {
			out.Missing = append(out.Missing, m)
		}
	}
	return out
}

// Check says what stands in the way of these capabilities: libcuda for compute and
// video, or libnvidia-ml for utility, is absent, refused, or of another version
// than the loaded kernel module ("Driver/library version mismatch" of NVML).
func (f *Files) Check(caps []string) error {
	if f.Platform != "" {
		return f.checkPlatform(caps)
	}
	want := implied(caps)
	for _, e := range expected {
		name := e.stem + ".so." + f.Version
		if (e.capability == "compute" || e.capability == "utility") &&
			slices.Contains(want, e.capability) && !f.has(name) {
			return f.absent(e.stem, name)
		}
	}
	return nil
}

// absent explains why a library is not there.
func (f *Files) absent(stem, name string) error {
	for _, r := range f.Refused {
		if path.Base(r.Path) == name {
			return fmt.Errorf("NVIDIA driver %s: %s was found at %s but refused: it %s", f.Version, name, r.Path, r.Reason)
		}
	}
	for _, other := range f.Others {
		if base := path.Base(other); strings.HasPrefix(base, stem+".so.") {
			return fmt.Errorf("NVIDIA driver library %s was found (%s), but the loaded kernel module is %s: reboot, reload the nvidia module, or reinstall the driver's user-space",
				base, other, f.Version)
		}
	}
	where := "none of the known directories exists below " + f.Root
	if len(f.Searched) > 0 {
		where = "searched " + strings.Join(f.Searched, ", ")
	}
	return fmt.Errorf("NVIDIA driver %s is loaded, but %s was not found (%s): install the driver's user-space, or set host.driver-root or host.driver-libraries in the configuration",
		f.Version, name, where)
}
