package ldcache

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/image"
)

// generator is what a cache says about its origin that lists the driver only;
// `ldconfig -p` prints it.
const generator = "containerd-shim-nvidia"

const cachePath = "/etc/ld.so.cache"

// Library is a name that a loader can ask for and the file that answers.
type Library struct {
	Name  string // SONAME, or the name of a .so link
	Path  string // in the container: "/usr/local/nvidia/lib64/libcuda.so.1"
	Flags int32  // the ABI, see FlagsFor
}

// File is a file to write into the image by image.Root.WriteFile before `runc
// create`.
type File struct {
	Path  string
	Data  []byte
	Mode  os.FileMode
	Mkdir bool // make the directory where it is missing
}

// Update computes the files that make the loader of the image find libs, which
// lie in the directories dirs of the container. It writes nothing. The second
// result tells humans what was odd about the image.
//
// With glibc: /etc/ld.so.cache, in which the names of img.Compat come first where
// it is used, then libs, then everything that the image listed, in its order; and
// what a later ldconfig needs to come to the same result (see confFiles). A cache
// that is missing or of no use is replaced by one of the driver alone: the loader
// then still finds the image's libraries in its default directories. With musl:
// the loader's path file. With neither: nothing.
//
// Entries of an earlier run are removed first: those below dirs, and those below
// the directories that the ld.so.conf.d entry of that run names. So nothing
// accumulates in an image that was committed from a container, and running again
// gives the same bytes.
func (img *Image) Update(root *image.Root, dirs []string, libs []Library) ([]File, []string) {
	u := update{root: root, compat: img.Compat}
	if img.LibC == "" || len(dirs) == 0 && len(libs) == 0 {
		return nil, nil
	}
	if root.IsHost() {
		return nil, []string{"the root file system is the host's own: its linker files are left alone"}
	}
	for _, dir := range dirs {
		if !plainDir(dir) {
			u.note("the directory %.256q cannot be written into a configuration of the linker", dir)
			continue
		}
		if !slices.Contains(u.dirs, dir) {
			u.dirs = append(u.dirs, dir)
		}
	}
	if u.compat.Use && below(u.compat.Dir+"/", u.dirs) {
		u.note("%s is hidden by the driver's directory", u.compat.Dir)
		u.compat.Use = false
	}
	u.libs = libs
	switch img.LibC {
	case GLibC:
		u.cache()
		u.confFiles()
	case Musl:
		u.muslPath()
	}
	return u.files, u.notes
}

// update is one run of Image.Update.
type update struct {
	root   *image.Root
	compat Compat
	dirs   []string
	libs   []Library

	files []File
	notes []string
}

func (u *update) note(format string, args ...any) {
	u.notes = append(u.notes, fmt.Sprintf(format, args...))
}

// add adds a file, unless the image has something there that a file cannot
// replace.
func (u *update) add(name string, data []byte) {
	if why := u.obstacle(name); why != "" {
		u.note("%s of the image is not written: %s", name, why)
		return
	}
	u.files = append(u.files, File{Path: name, Data: data, Mode: 0o644, Mkdir: true})
}

// obstacle says why name cannot be written, "" where it can. A missing directory
// is made, if its own parent is there and the name is free: a link into nowhere,
// such as /etc -> /proc/1/root, is not (attack T06).
func (u *update) obstacle(name string) string {
	if info, err := u.root.Stat(name); err == nil && info.IsDir() {
		return "it is a directory"
	}
	dir := path.Dir(name)
	info, err := u.root.Stat(dir)
	switch {
	case err == nil && info.IsDir():
		return ""
	case err == nil:
		return dir + " is not a directory"
	case !errors.Is(err, fs.ErrNotExist):
		return fmt.Sprintf("%s: %v", dir, err)
	}
	parent := path.Dir(dir)
	names, err := u.root.ReadDir(parent, maxEntries)
	switch {
	case errors.Is(err, fs.ErrNotExist) && slices.ContainsFunc(u.files, func(f File) bool { return path.Dir(f.Path) == parent }):
		return "" // an earlier file of this run makes it
	case err != nil:
		return fmt.Sprintf("%s: %v", parent, err)
	case slices.Contains(names, path.Base(dir)):
		return dir + " is a link into nowhere"
	}
	return ""
}

// cache makes the new /etc/ld.so.cache.
func (u *update) cache() {
	entries := u.entries()
	c := u.imageCache()
	c.dropBelow(append(u.earlierDirs(), u.dirs...))
	c.Prepend(entries)
	data := c.Encode()
	if len(data) > MaxCacheSize || !c.withinLimits() {
		// The next run could not read what this one wrote.
		u.note("%s of the image is too large to take the driver's libraries and is replaced by one of the driver only", cachePath)
		c = &Cache{Generator: generator}
		c.Prepend(entries)
		data = c.Encode()
	}
	u.add(cachePath, data)
}

// entries are the new entries: those of the forward compatibility package first,
// and none of the driver's for the same name and ABI.
func (u *update) entries() []Entry {
	type key struct {
		name  string
		flags int32
	}
	var entries []Entry
	taken := make(map[key]bool)
	if u.compat.Use {
		for _, e := range u.compat.Entries {
			taken[key{e.Name, e.Flags}] = true
			entries = append(entries, e)
		}
	}
	for _, l := range u.libs {
		e := Entry{Name: l.Name, Path: l.Path, Flags: l.Flags}
		if !e.valid() {
			u.note("the library %.256q cannot be listed in %s", l.Name, cachePath)
			continue
		}
		if !taken[key{l.Name, l.Flags}] {
			entries = append(entries, e)
		}
	}
	return entries
}

// imageCache is the image's own cache, or an empty one with a note why.
func (u *update) imageCache() *Cache {
	data, err := u.root.ReadFile(cachePath, MaxCacheSize)
	if err == nil {
		var c *Cache
		c, err = ParseCache(data)
		if err == nil && (len(c.Entries) <= maxUnsorted || inOrder(c.Entries)) {
			return c
		}
		if err == nil {
			err = errors.New("it is not in the order in which a loader searches")
		}
	}
	if errors.Is(err, fs.ErrNotExist) {
		u.note("the image has no %s: one of the driver only is made", cachePath)
	} else {
		u.note("%s of the image is of no use and is replaced by one of the driver only: %v", cachePath, err)
	}
	return &Cache{Generator: generator}
}
