package image

import (
	"path"

	"golang.org/x/sys/unix"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/ldcache"
)

// C libraries that Inspect recognizes.
const (
	GLibC = "glibc"
	Musl  = "musl"
)

// Image holds what Inspect found out about an image.
type Image struct {
	// LibC is the C library for this machine's 64-bit ABI or, if there is none, for the 32-bit one:
	// GLibC, Musl, or "" for neither (static programs only, or a system whose loader searches
	// elsewhere, such as Nix).
	LibC string
	// LibDir is the directory, without links, that has that C library: the place for driver files
	// that must be found even without a cache. The ELF class and machine of the file decide, never
	// the name of a distribution. It is "" if LibC is "", and in an image with only 32-bit
	// programs.
	LibDir string
	// LibDir32 is the directory of glibc for the 32-bit ABI, "" if the image has none.
	LibDir32 string
	// Compat is the image's forward compatibility package.
	Compat Compat
}

// LoaderPath is the file by which the image's loader finds libraries outside its default
// directories.
func (img Image) LoaderPath() string {
	if img.LibC == Musl {
		return muslPath
	}
	return CachePath
}

// Inspect finds the C library and the forward compatibility package of an image; hostDriver is the
// version of the host's driver. A file that is malformed, too large or not regular is treated as
// absent, so that an odd image still starts.
func (r *Root) Inspect(hostDriver string) Image {
	img := Image{
		LibDir32: r.findGlibc(ldcache.ABI32, libDirs(ldcache.ABI32, "32")),
		Compat:   r.findCompat(hostDriver),
	}
	// A glibc in a usual place belongs to the system. One that is found only through its loader may
	// be an addition to a musl system (/usr/glibc-compat on Alpine), so musl is checked first.
	if img.LibDir = r.findGlibc(ldcache.ABI64, libDirs(ldcache.ABI64, "64")); img.LibDir != "" {
		img.LibC = GLibC
		return img
	}
	if lib, err := r.readELF("/lib/ld-musl-" + ldcache.ABI64.Arch + ".so.1"); err == nil && ldcache.ABI64.Matches(lib) {
		img.LibC = Musl
		img.LibDir, _ = r.Target("/lib")
		return img
	}
	if loader, err := r.Target(ldcache.ABI64.Loader); err == nil {
		img.LibDir = r.findGlibc(ldcache.ABI64, []string{path.Dir(loader)})
	}
	if img.LibDir != "" || img.LibDir32 != "" {
		img.LibC = GLibC
	}
	return img
}

// libDirs returns the default directories of Debian's, Red Hat's and unmodified glibc.
func libDirs(a ldcache.ABI, bits string) []string {
	return []string{"/lib/" + a.Triple, "/usr/lib/" + a.Triple, "/lib" + bits, "/usr/lib" + bits, "/lib", "/usr/lib"}
}

// findGlibc returns the first of dirs that has a libc.so.6 of the ABI. Its SONAME must match too:
// compatibility packages of musl distributions put a link to musl there.
func (r *Root) findGlibc(a ldcache.ABI, dirs []string) string {
	for _, dir := range dirs {
		lib, err := r.readELF(dir + "/libc.so.6")
		if err == nil && a.Matches(lib) && lib.SOName == "libc.so.6" {
			dir, _ = r.Target(dir)
			return dir
		}
	}
	return ""
}

// Libraries returns those of the names that are libraries for this machine's 64-bit ABI in the
// directory dir, or links to one, but at most limit: each is opened.
func (r *Root) Libraries(dir string, names []string, limit int) (list []string) {
	at, err := r.lookup(dir)
	defer at.close()
	if err != nil {
		return nil
	}
	for _, name := range names {
		var st unix.Stat_t
		if len(list) == limit || unix.Fstatat(at.fd, name, &st, unix.AT_SYMLINK_NOFOLLOW) != nil {
			continue
		}
		if lib, err := r.readELF(path.Join(dir, name)); err == nil && ldcache.ABI64.Matches(lib) {
			list = append(list, name)
		}
	}
	return list
}

// CachePath is the cache of glibc's loader.
const CachePath = "/etc/ld.so.cache"

var muslPath = "/etc/ld-musl-" + ldcache.ABI64.Arch + ".path"
