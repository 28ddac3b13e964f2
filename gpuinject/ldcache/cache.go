package ldcache

import (
	"slices"
	"strings"
)

// Limits of a cache file. An image's cache beyond one of them counts as corrupt
// (attack T10): distributions stay two orders of magnitude below.
const (
	// MaxCacheSize is the size in bytes of the largest /etc/ld.so.cache that is
	// read, and the most its strings may add up to once they are expanded: entries
	// may share strings, and 64k entries sharing one long string would be gigabytes.
	MaxCacheSize = 4 << 20

	maxEntries = 64 << 10
	maxString  = 4 << 10 // PATH_MAX
	maxHWCaps  = 1 << 10
	// maxUnsorted is the largest image cache that Update sorts: what ldconfig wrote
	// is in order, and nothing in a larger one out of order could be found anyway.
	maxUnsorted = 4 << 10
)

// hwcapExtension marks an entry of a glibc-hwcaps subdirectory: then the low 32
// bits of HWCap are an index into Cache.HWCaps and the upper ones may hold an ISA
// level (glibc 2.33, DL_CACHE_HWCAP_EXTENSION in sysdeps/generic/dl-cache.h).
const hwcapExtension = 1 << 62

// Entry is one library of a cache: struct file_entry_new of glibc's
// sysdeps/generic/dl-cache.h.
type Entry struct {
	Name      string // what a program asks for: "libcuda.so.1"
	Path      string // where it is: "/usr/local/nvidia/lib64/libcuda.so.1"
	Flags     int32  // the ABI, see FlagsFor
	OSVersion uint32 // least kernel version, 0 for any; not used since glibc 2.36
	HWCap     uint64 // 0 for any processor
}

// valid tells whether the entry can be written and read back.
func (e *Entry) valid() bool {
	return e.Name != "" && e.Path != "" && len(e.Name) <= maxString && len(e.Path) <= maxString &&
		strings.IndexByte(e.Name, 0) < 0 && strings.IndexByte(e.Path, 0) < 0
}

// Cache is the content of an /etc/ld.so.cache. The zero value is an empty cache.
type Cache struct {
	// Entries are the libraries in the order of the file. Of those with one name
	// and ABI the loader takes the first that the machine can run.
	Entries []Entry
	// Generator names the program that wrote the file, "" where it does not say
	// (before glibc 2.33).
	Generator string
	// HWCaps are the names of the glibc-hwcaps subdirectories ("x86-64-v3"), sorted
	// as in the file. An Entry refers to them by index in the low 32 bits of HWCap
	// where bit 62 is set, so their order must not change.
	HWCaps []string
}

// compareEntries is the order of a cache file: names by libcmp and then the ABI,
// both descending (compare in glibc's elf/cache.c).
func compareEntries(a, b Entry) int {
	if c := libcmp(b.Name, a.Name); c != 0 {
		return c
	}
	switch {
	case a.Flags > b.Flags:
		return -1
	case a.Flags < b.Flags:
		return 1
	}
	return 0
}

// inOrder tells whether ld.so can search the entries.
func inOrder(entries []Entry) bool {
	for i := 1; i < len(entries); i++ {
		if libcmp(entries[i-1].Name, entries[i].Name) < 0 {
			return false
		}
	}
	return true
}

// sorted returns the entries in the order that the loader needs, equal ones in
// their old order. Entries that are in order already are returned as they are:
// nothing that ldconfig arranged is arranged anew.
func sorted(entries []Entry) []Entry {
	if !inOrder(entries) {
		entries = slices.Clone(entries)
		slices.SortStableFunc(entries, compareEntries)
	}
	return entries
}

// Prepend puts entries into the cache so that the loader finds them before any
// other of the same name, in the order given.
//
//   - An old entry for the same path is dropped: no path is listed twice.
//   - An old entry of the same name and ABI that is limited to some processors
//     (glibc-hwcaps, or the legacy hwcap bits) is dropped: the loader prefers it
//     wherever it stands, so that an image could hide the driver on new machines.
//   - All other entries stay, in their order.
//
// An entry that no cache can hold (empty, a NUL byte, more than 4 KiB) is left
// out. Doing the same again changes nothing.
func (c *Cache) Prepend(entries []Entry) {
	type listing struct {
		name, path string
		flags      int32
	}
	paths := make(map[string]struct{}, len(entries))
	listed := make(map[listing]struct{}, len(entries))
	fresh := make([]Entry, 0, len(entries))
	for _, e := range entries {
		key := listing{e.Name, e.Path, e.Flags}
		if _, again := listed[key]; again || !e.valid() {
			continue
		}
		listed[key], paths[e.Path] = struct{}{}, struct{}{}
		fresh = append(fresh, e)
	}
	slices.SortStableFunc(fresh, compareEntries)

	// Both lists are sorted now: merge them name by name.
	old := sorted(c.Entries)
	merged := make([]Entry, 0, len(old)+len(fresh))
	for len(fresh) > 0 {
		name := fresh[0].Name
		n := 1
		for n < len(fresh) && libcmp(name, fresh[n].Name) == 0 {
			n++
		}
		before := groupStart(old, name)
		merged = appendOthers(merged, old[:before], paths, nil)
		end := before
		for end < len(old) && libcmp(name, old[end].Name) == 0 {
			end++
		}
		merged = append(merged, fresh[:n]...)
		merged = appendOthers(merged, old[before:end], paths, fresh[:n])
		old, fresh = old[end:], fresh[n:]
	}
	c.Entries = appendOthers(merged, old, paths, nil)
}

// groupStart is the index of the first entry whose name does not come before
// name in the descending order of a cache.
func groupStart(entries []Entry, name string) int {
	lo, hi := 0, len(entries)
	for lo < hi {
		mid := int(uint(lo+hi) >> 1)
		if libcmp(entries[mid].Name, name) > 0 {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	return lo
}

// appendOthers appends the old entries that may stay beside the fresh ones of
// their name.
func appendOthers(to, old []Entry, paths map[string]struct{}, fresh []Entry) []Entry {
	for i := range old {
		e := &old[i]
		if _, again := paths[e.Path]; again {
			continue
		}
		if e.HWCap != 0 && slices.ContainsFunc(fresh, func(f Entry) bool { return f.Flags == e.Flags }) {
			continue
		}
		to = append(to, *e)
	}
	return to
}

// withinLimits tells whether ParseCache would take the entries and strings of the
// cache.
func (c *Cache) withinLimits() bool {
	size := 0
	for i := range c.Entries {
		size += len(c.Entries[i].Name) + len(c.Entries[i].Path) + 2
	}
	for _, h := range c.HWCaps {
		size += len(h) + 1
	}
	return len(c.Entries) <= maxEntries && size <= MaxCacheSize
}

// dropBelow removes the entries whose path is below one of dirs.
func (c *Cache) dropBelow(dirs []string) {
	c.Entries = slices.DeleteFunc(c.Entries, func(e Entry) bool { return below(e.Path, dirs) })
}

// below tells whether name is inside one of dirs.
func below(name string, dirs []string) bool {
	for _, dir := range dirs {
		if len(name) > len(dir) && name[len(dir)] == '/' && name[:len(dir)] == dir {
			return true
		}
	}
	return false
}
