package ldcache

import (
	"cmp"
	"slices"
	"strings"
)

// Limits of a cache file. A cache that exceeds one is treated as corrupt (attack T10). The caches
// of distributions are two orders of magnitude smaller.
const (
	// MaxCacheSize bounds the size of a cache in bytes, and the total of its strings once they are
	// expanded: entries may share strings, and 64k entries that share one long string would be
	// gigabytes.
	MaxCacheSize = 4 << 20

	maxEntries = 64 << 10
	maxString  = 4 << 10 // PATH_MAX
	maxHWCaps  = 1 << 10
)

// Entry is one library of a cache: struct file_entry_new of glibc's sysdeps/generic/dl-cache.h.
type Entry struct {
	Name      string // what a program asks for: "libcuda.so.1"
	Path      string // where it is: "/usr/local/nvidia/lib64/libcuda.so.1"
	Flags     int32  // the ABI, see ABI
	OSVersion uint32 // minimum kernel version, 0 for any; unused since glibc 2.36
	HWCap     uint64 // 0 for any processor
}

// valid reports whether the entry can be written and read back.
func (e *Entry) valid() bool {
	return e.Name != "" && e.Path != "" && len(e.Name) <= maxString && len(e.Path) <= maxString &&
		strings.IndexByte(e.Name, 0) < 0 && strings.IndexByte(e.Path, 0) < 0
}

// Cache is the content of an /etc/ld.so.cache. The zero value is an empty cache.
type Cache struct {
	// Entries are the libraries in the order of the file. Of entries with the same name and ABI the
	// loader takes the first that the machine can run.
	Entries []Entry
	// HWCaps are the names of the glibc-hwcaps subdirectories ("x86-64-v3"), sorted as in the file.
	// An Entry refers to them by index in the low 32 bits of HWCap if bit 62 is set, so their order
	// must not change.
	HWCaps []string
}

// compareNames is the order in which ld.so searches a cache: names by libcmp, descending.
func compareNames(a, b Entry) int { return libcmp(b.Name, a.Name) }

// compareEntries is the order in which ldconfig writes a cache: names and then the ABI, both
// descending (compare in glibc's elf/cache.c).
func compareEntries(a, b Entry) int {
	return cmp.Or(compareNames(a, b), cmp.Compare(b.Flags, a.Flags))
}

// Prepend puts entries into the cache so that the loader finds them before any other of the same
// name, in the order given.
//
//   - An old entry for the same path is dropped: no path is listed twice.
//   - An old entry of the same name and ABI that is limited to some processors (glibc-hwcaps, or the
//     legacy hwcap bits) is dropped: the loader prefers it wherever it stands, so that an image
//     could hide the driver on new machines.
//   - All other entries stay, in their order.
//
// An entry that no cache can hold (empty, with a NUL byte, longer than 4 KiB) is left out.
// Prepending the same entries again changes nothing.
func (c *Cache) Prepend(entries []Entry) {
	paths := map[string]bool{}
	var fresh []Entry
	for _, e := range entries {
		if e.valid() && !slices.Contains(fresh, e) {
			paths[e.Path] = true
			fresh = append(fresh, e)
		}
	}
	slices.SortStableFunc(fresh, compareEntries)
	all := slices.Clone(fresh)
	for _, old := range c.Entries {
		_, ours := slices.BinarySearchFunc(fresh, old, compareEntries)
		if !paths[old.Path] && !(ours && old.HWCap != 0) {
			all = append(all, old)
		}
	}
	slices.SortStableFunc(all, compareNames)
	c.Entries = all
}

// DropBelow removes the entries of libraries below one of dirs.
func (c *Cache) DropBelow(dirs []string) {
	c.Entries = slices.DeleteFunc(c.Entries, func(e Entry) bool {
		return slices.ContainsFunc(dirs, func(dir string) bool {
			return dir != "" && strings.HasPrefix(e.Path, dir+"/")
		})
	})
}
