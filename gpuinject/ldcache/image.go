package ldcache

import (
	"errors"
	"path"
	"slices"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/image"
)

// LibC names the C library of an image: "glibc", "musl", or "" for neither (a
// static program, or a system whose loader looks elsewhere, as Nix's does).
type LibC string

// The C libraries that are told apart.
const (
	GLibC LibC = "glibc"
	Musl  LibC = "musl"
)

// Image is what Inspect found out about an image.
type Image struct {
	// LibC is the C library of this machine's 64-bit ABI, or else the 32-bit one.
	LibC LibC
	// LibDir is the canonical directory where that C library is, for the few driver
	// files that are wanted at a place which is searched even without a cache. It is
	// decided by the ELF class and machine of the file, never by the name of a
	// distribution. "" where LibC is, and in an image of 32-bit programs only.
	LibDir string
	// LibDir32 is the same for glibc of the 32-bit ABI, "" where the image has none.
	LibDir32 string
	// Compat is the image's forward compatibility package.
	Compat Compat
}

// Inspect looks at the C library and the forward compatibility package of an
// image; hostDriver is the version of the host's driver. What is malformed, too
// large or no regular file counts as absent, so that an odd image still starts;
// the only error is a missing root.
func Inspect(root *image.Root, hostDriver string) (*Image, error) {
	if root == nil {
		return nil, errors.New("inspect image: no root file system")
	}
	a, a32 := hostABIs()
	img := &Image{
		LibDir32: glibcIn(root, &a32, a32.dirs),
		Compat:   FindCompat(root, hostDriver),
	}
	// A glibc in a usual place is the system's. One found by its loader alone may be
	// a guest on musl (/usr/glibc-compat on Alpine), so musl comes before it.
	if img.LibDir = glibcIn(root, &a, a.dirs); img.LibDir != "" {
		img.LibC = GLibC
		return img, nil
	}
	if hasMusl(root, &a) {
		if dir, err := root.Canonical("/lib"); err == nil {
			img.LibC, img.LibDir = Musl, dir
			return img, nil
		}
	}
	if img.LibDir = glibcIn(root, &a, unusualDirs(root, &a)); img.LibDir != "" || img.LibDir32 != "" {
		img.LibC = GLibC
	}
	return img, nil
}

// glibcIn returns the canonical form of the first of dirs that has a libc.so.6 of
// the ABI. Its SONAME must say so too: compatibility packages of musl
// distributions put a link to musl there.
func glibcIn(root *image.Root, a *abi, dirs []string) string {
	for _, dir := range dirs {
		lib, err := readELF(root, dir+"/libc.so.6")
		if err != nil || !a.is(lib) || lib.SOName != "libc.so.6" {
			continue
		}
		if real, err := root.Canonical(dir); err == nil {
			return real
		}
	}
	return ""
}

// unusualDirs are the directories where glibc's loader is, and where the cache
// says that libc is.
func unusualDirs(root *image.Root, a *abi) []string {
	var dirs []string
	if loader, err := root.Canonical(a.loader); err == nil {
		dirs = append(dirs, path.Dir(loader))
	}
	data, err := root.ReadFile(cachePath, MaxCacheSize)
	if err != nil {
		return dirs
	}
	cache, err := ParseCache(data)
	if err != nil {
		return dirs
	}
	flags := a.flags()
	if i := slices.IndexFunc(cache.Entries, func(e Entry) bool {
		return e.Name == "libc.so.6" && e.Flags == flags && path.IsAbs(e.Path)
	}); i >= 0 {
		dirs = append(dirs, path.Dir(cache.Entries[i].Path))
	}
	return dirs
}

// hasMusl tells whether the image has a musl loader of the ABI.
func hasMusl(root *image.Root, a *abi) bool {
	lib, err := readELF(root, "/lib/ld-musl-"+a.musl+".so.1")
	return err == nil && a.is(lib)
}
