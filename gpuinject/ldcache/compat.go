package ldcache

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/image"
)

const (
	compatPath = "/usr/local/cuda/compat"
	// driverMount is where the driver's files are mounted; what an image has there
	// is out of sight.
	driverMount = "/usr/local/nvidia"

	maxCompatFiles = 256     // names in the directory; real ones have about ten
	maxLibrary     = 1 << 30 // bytes; libcuda.so has about 100 MB
)

// Compat is the forward compatibility package of an image: a libcuda.so that is
// newer than the host's driver and works with its kernel module.
type Compat struct {
	// Dir is the canonical directory, "/usr/local/cuda-12.9/compat"; "" where the
	// image has none.
	Dir string
	// Version is the version of its libcuda.so, "575.57.08"; "" where there is not
	// exactly one.
	Version string
	// Use says that these libraries are to win over the host's driver.
	Use bool
	// Reason says why, for humans.
	Reason string
	// SONames are the names that the directory offers to a loader, sorted: SONAMEs
	// and links ("libcuda.so.1", "libcuda.so"). Empty unless Use.
	SONames []string
	// Entries are the cache entries of SONames. Empty unless Use.
	Entries []Entry
}

// FindCompat looks at the image's /usr/local/cuda/compat and decides whether its
// libraries are used with the host driver of the given version ("580.95.05").
//
// The rule is that of nvidia-container-toolkit's enable-cuda-compat hook: exactly
// one regular file libcuda.so.<version>; with the ELF note, the host's major
// version is in its Driver list and the version is newer than the host's; without
// a note, its major version is greater than the host's. Versions compare as
// numbers. Everything odd means that the driver is used.
//
// Nothing is ever mounted from there, which was CVE-2024-0132 and CVE-2025-23359:
// the answer only decides which directory the linker's cache names first.
func FindCompat(root *image.Root, hostDriver string) Compat {
	dir, err := root.Canonical(compatPath)
	if err != nil {
		return Compat{Reason: "the image has no " + compatPath}
	}
	names, err := root.ReadDir(dir, maxCompatFiles)
	if err != nil {
		return Compat{Reason: fmt.Sprintf("%s of the image cannot be listed", compatPath)}
	}
	slices.Sort(names)
	c := Compat{Dir: dir}
	if !plainDir(dir) || below(dir+"/", []string{driverMount}) {
		c.Reason = fmt.Sprintf("the directory %q cannot be used", dir)
		return c
	}
	if c.Version, c.Reason = libcudaVersion(root, dir, names); c.Version == "" {
		return c
	}
	lib, err := readELF(root, dir+"/libcuda.so."+c.Version)
	if err != nil {
		c.Reason = fmt.Sprintf("libcuda.so.%s of the image is not a library: %v", c.Version, err)
		return c
	}
	if c.Use, c.Reason = useCompat(c.Version, lib, hostDriver); c.Use {
		c.list(root, names)
	}
	return c
}

// libcudaVersion returns the version of the only libcuda.so.<version> that is a
// file itself and not a link, or "" and the reason.
func libcudaVersion(root *image.Root, dir string, names []string) (version, reason string) {
	for _, name := range names {
		v, ok := strings.CutPrefix(name, "libcuda.so.")
		if !ok {
			continue
		}
		// 418.226.00, or 410.129 of CUDA 10.0. The 1.1 of Tegra is no driver version.
		if n, ok := parseVersion(v); !ok || len(n) < 2 || len(n) > 3 || n[0] < 100 {
			continue
		}
		full := dir + "/" + name
		info, err := root.Stat(full)
		if err != nil || !info.Mode().IsRegular() || isLink(root, full) {
			continue
		}
		if version != "" {
			return "", fmt.Sprintf("%s of the image has more than one libcuda.so.<version>", compatPath)
		}
		version = v
	}
	if version == "" {
		return "", fmt.Sprintf("%s of the image has no libcuda.so.<version>", compatPath)
	}
	return version, ""
}

// useCompat is the rule of FindCompat for one library.
func useCompat(version string, lib ELF, hostDriver string) (bool, string) {
	if a, _ := hostABIs(); !a.is(lib) {
		return false, fmt.Sprintf("libcuda.so.%s of the image is for %v", version, lib.Machine)
	}
	compat, _ := parseVersion(version)
	host, ok := parseVersion(hostDriver)
	switch {
	case !ok:
		return false, fmt.Sprintf("the version of the host driver, %.64q, is not known", hostDriver)
	case lib.NoteErr != nil:
		return false, fmt.Sprintf("libcuda.so.%s of the image cannot be judged: %v", version, lib.NoteErr)
	case lib.Note != nil && !slices.Contains(lib.Note.Driver, host[0]):
		return false, fmt.Sprintf("libcuda.so.%s of the image does not serve host drivers %d.x", version, host[0])
	case lib.Note != nil && !newer(compat, host):
		return false, fmt.Sprintf("libcuda.so.%s of the image is not newer than the host driver %s", version, hostDriver)
	case lib.Note != nil:
		return true, fmt.Sprintf("libcuda.so.%s of the image (CUDA %.16s) is newer than the host driver %s and serves it", version, lib.Note.CUDAVersion, hostDriver)
	case compat[0] > host[0]:
		return true, fmt.Sprintf("libcuda.so.%s of the image is of a newer release than the host driver %s", version, hostDriver)
	}
	return false, fmt.Sprintf("libcuda.so.%s of the image is not of a newer release than the host driver %s", version, hostDriver)
}

// list fills SONames and Entries with what ldconfig would list of the directory:
// each library by its SONAME, and each link by its own name.
func (c *Compat) list(root *image.Root, names []string) {
	a, _ := hostABIs()
	paths := make(map[string]string)
	for _, name := range names {
		if !strings.HasPrefix(name, "lib") || !strings.Contains(name, ".so") {
			continue
		}
		full := c.Dir + "/" + name
		lib, err := readELF(root, full)
		if err != nil || !a.is(lib) {
			continue
		}
		if lib.SOName == "" || isLink(root, full) {
			paths[name] = full
			continue
		}
		if _, known := paths[lib.SOName]; known || !plainName(lib.SOName) {
			continue
		}
		paths[lib.SOName] = full
		if link := c.Dir + "/" + lib.SOName; slices.Contains(names, lib.SOName) {
			if _, err := root.Stat(link); err == nil {
				paths[lib.SOName] = link
			}
		}
	}
	for name := range paths {
		c.SONames = append(c.SONames, name)
	}
	slices.Sort(c.SONames)
	for _, name := range c.SONames {
		c.Entries = append(c.Entries, Entry{Name: name, Path: paths[name], Flags: a.flags()})
	}
}

// readELF reads the library name of an image.
func readELF(root *image.Root, name string) (ELF, error) {
	f, info, err := root.OpenFile(name, maxLibrary)
	if err != nil {
		return ELF{}, err
	}
	defer f.Close()
	return ReadELF(f, info.Size())
}

// isLink tells whether the last component of a path in a canonical directory is
// a symbolic link.
func isLink(root *image.Root, name string) bool {
	real, err := root.Canonical(name)
	return err != nil || real != name
}

// plainDir tells whether a directory can be a line of ld.so.conf and of musl's
// path file, which know no quoting: "=" introduces a type, "#" a comment, ":"
// separates.
func plainDir(dir string) bool {
	return path.IsAbs(dir) && path.Clean(dir) == dir && len(dir) <= maxString && dir != "/" &&
		strings.IndexFunc(dir, func(r rune) bool {
			return r <= ' ' || r == 0x7f || strings.ContainsRune("=#:,*?[]\\\"'", r)
		}) < 0
}

// plainName tells whether a SONAME is a file name.
func plainName(name string) bool {
	return name != "" && len(name) <= 255 && strings.IndexFunc(name, func(r rune) bool {
		return r <= ' ' || r == 0x7f || r == '/'
	}) < 0
}
