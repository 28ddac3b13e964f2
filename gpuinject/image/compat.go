package image

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/ldcache"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/view"
)

const (
	compatPath = "/usr/local/cuda/compat"
	// maxCompatFiles bounds the names in the directory; real ones have about ten.
	maxCompatFiles = 64
)

// Compat is the forward compatibility package of an image: a libcuda.so that is newer than the
// host's driver and works with its kernel module.
type Compat struct {
	// Dir is the directory without links, "/usr/local/cuda-12.9/compat"; "" if the image has none.
	Dir string
	// Use reports whether these libraries take the place of the host's.
	Use bool
	// Reason says why, for humans.
	Reason string
	// Entries are the cache entries of the names that the directory offers to a loader, sorted:
	// SONAMEs and links ("libcuda.so.1", "libcuda.so"). Empty unless Use.
	Entries []ldcache.Entry
}

// findCompat reads the image's /usr/local/cuda/compat and decides whether its libraries are used
// with the host driver of the given version ("580.95.05").
//
// The rule of nvidia-container-toolkit's enable-cuda-compat hook holds: exactly one regular file
// libcuda.so.<version>; with the ELF note, the host's major version is in its Driver list and the
// version is newer than the host's; without a note, its major version is greater than the host's.
// Versions are compared as numbers. In any odd case the host's driver is used.
//
// Nothing is ever mounted from there, as it was in CVE-2024-0132 and CVE-2025-23359: the answer
// only decides which directory comes first in the loader's cache.
func (r *Root) findCompat(hostDriver string) Compat {
	dir, err := r.Target(compatPath)
	if err != nil {
		return Compat{Reason: fmt.Sprintf("%s of the image cannot be used: %v", compatPath, err)}
	}
	files, err := r.compatFiles(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return Compat{Reason: "the image has no " + compatPath}
	}
	if err != nil {
		return Compat{Reason: fmt.Sprintf("%s of the image cannot be listed", compatPath)}
	}
	c := Compat{Dir: dir}
	// guard: image: no line feed in a path
	// guard: image: no compatibility below the view
	if !ldcache.IsConfDir(dir) || slices.ContainsFunc(view.Dirs, func(own string) bool { return strings.HasPrefix(dir+"/", own+"/") }) {
		c.Reason = fmt.Sprintf("the directory %.256q cannot be used", dir)
		return c
	}
	version, reason := libcudaVersion(files)
	if version == "" {
		c.Reason = reason
		return c
	}
	lib, err := r.readELF(dir + "/libcuda.so." + version)
	if err != nil {
		c.Reason = fmt.Sprintf("libcuda.so.%s of the image is not a library: %v", version, err)
		return c
	}
	if c.Use, c.Reason = useCompat(version, lib, hostDriver); c.Use {
		c.Entries = r.compatEntries(dir, files)
	}
	return c
}

// compatFiles maps each name in the directory to the regular file beside it that it leads to, by
// links to plain names in the same directory. Everything else is left out: a link elsewhere could
// lead through any number of directories.
func (r *Root) compatFiles(dir string) (map[string]string, error) {
	names, err := r.readDir(dir, maxCompatFiles)
	if err != nil {
		return nil, err
	}
	leads := map[string]string{} // a regular file leads to itself
	for _, name := range names {
		if target, isLink := r.readLink(path.Join(dir, name)); isLink {
			leads[name] = target
		} else if r.IsFile(path.Join(dir, name)) {
			leads[name] = name
		}
	}
	files := map[string]string{}
	for name, file := range leads {
		for range leads {
			file = leads[file]
		}
		if file != "" && leads[file] == file {
			files[name] = file
		}
	}
	return files, nil
}

// libcudaVersion returns the version of the only libcuda.so.<version> that is a file itself and not
// a link, or "" and the reason.
func libcudaVersion(files map[string]string) (version, reason string) {
	for name, file := range files {
		v, ok := strings.CutPrefix(name, "libcuda.so.")
		if !ok || file != name {
			continue
		}
		// Tegra's 1.1 is not a driver version.
		if n, ok := parseVersion(v); !ok || n[0] < 100 {
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

// parseVersion splits "580.95.05", or "410.129" of CUDA 10.0, into its numbers.
func parseVersion(s string) (numbers []int, ok bool) {
	for part := range strings.SplitSeq(s, ".") {
		n, err := strconv.ParseUint(part, 10, 31)
		if err != nil {
			return nil, false
		}
		numbers = append(numbers, int(n))
	}
	return numbers, len(numbers) == 2 || len(numbers) == 3
}

// useCompat applies the rule of findCompat to one library.
func useCompat(version string, lib ldcache.ELF, hostDriver string) (use bool, reason string) {
	if !ldcache.ABI64.Matches(lib) {
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
	case lib.Note != nil && slices.Compare(compat, host) <= 0:
		return false, fmt.Sprintf("libcuda.so.%s of the image is not newer than the host driver %s", version, hostDriver)
	case lib.Note != nil:
		return true, fmt.Sprintf("libcuda.so.%s of the image (CUDA %.16s) is newer than the host driver %s and serves it", version, lib.Note.CUDAVersion, hostDriver)
	case compat[0] > host[0]:
		return true, fmt.Sprintf("libcuda.so.%s of the image belongs to a newer release than the host driver %s", version, hostDriver)
	}
	return false, fmt.Sprintf("libcuda.so.%s of the image does not belong to a newer release than the host driver %s", version, hostDriver)
}

// compatEntries returns what ldconfig would list for the directory, sorted by name: each library by
// its SONAME, and each link by its own name.
func (r *Root) compatEntries(dir string, files map[string]string) []ldcache.Entry {
	var entries []ldcache.Entry
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if !strings.HasPrefix(name, "lib") || !strings.Contains(name, ".so") {
			continue
		}
		lib, err := r.readELF(path.Join(dir, files[name]))
		if err != nil || !ldcache.ABI64.Matches(lib) {
			continue
		}
		soname := name
		if files[name] == name && lib.SOName != "" {
			soname = lib.SOName
		}
		listed := soname != name && files[soname] != "" // a link of that name is listed itself
		// guard: image: SONAME without slash
		if listed || strings.Contains(soname, "/") || slices.ContainsFunc(entries, func(e ldcache.Entry) bool { return e.Name == soname }) {
			continue
		}
		entries = append(entries, ldcache.Entry{Name: soname, Path: path.Join(dir, name), Flags: ldcache.ABI64.Flags})
	}
	slices.SortFunc(entries, func(a, b ldcache.Entry) int { return strings.Compare(a.Name, b.Name) })
	return entries
}

func (r *Root) readELF(name string) (ldcache.ELF, error) {
	f, size, err := r.openFile(name, maxLibrary)
	if err != nil {
		return ldcache.ELF{}, err
	}
	defer f.Close()
	lib, err := ldcache.ReadELF(f, size)
	_ = r.noted(errors.Join(err, lib.NoteErr))
	return lib, err
}

// maxLibrary bounds the size of a library that is read; libcuda.so has about 100 MB.
const maxLibrary = 1 << 30
