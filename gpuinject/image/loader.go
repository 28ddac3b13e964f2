package image

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/ldcache"
)

const (
	confPath = "/etc/ld.so.conf"
	// confEntryPath has a fixed name, so that there is only one, however often the container
	// starts.
	confEntryPath = "/etc/ld.so.conf.d/000-nvidia-shim.conf"
	// maxConf bounds the size of a loader's configuration file that is read.
	maxConf = 64 << 10
)

// File is a file to write into the image by Root.WriteFile.
type File struct {
	Path string
	Data []byte
}

// LoaderFiles computes the files that make the loader of the image find libs, which are in the
// directories dirs of the container, and notes about oddities of the image.
//
// With glibc: /etc/ld.so.cache, in which the libraries of img.Compat come first if it is used, then
// libs, then the image's own entries in their order; and what a later ldconfig needs to produce the
// same result. A missing or damaged cache is replaced by one with the driver only: the loader then
// still finds the image's libraries in its default directories. With musl: the loader's path file.
// Otherwise nothing.
//
// Entries of an earlier start are removed, so that they do not accumulate in an image that was
// committed from a container.
func (r *Root) LoaderFiles(img Image, dirs []string, libs []ldcache.Entry) (files []File, notes []string) {
	if img.LibC == "" || len(dirs) == 0 && len(libs) == 0 {
		return nil, nil
	}
	if r.IsHost() {
		return nil, []string{"the root file system is the host's own: its linker files are left alone"}
	}
	dirs = slices.DeleteFunc(slices.Clone(dirs), func(dir string) bool { return !ldcache.IsConfDir(dir) })
	if img.LibC == Musl {
		return r.muslFiles(dirs, libs)
	}
	return r.glibcFiles(img.Compat, dirs, libs)
}

// glibcFiles returns the files for glibc: the cache; the entry of /etc/ld.so.conf.d by which a
// later ldconfig of the container (every apt or dnf runs one) lists the driver again, before
// everything else that this directory names; and /etc/ld.so.conf if it does not include that entry.
func (r *Root) glibcFiles(compat Compat, dirs []string, libs []ldcache.Entry) (files []File, notes []string) {
	confDirs := dirs
	if compat.Use {
		libs = slices.Concat(compat.Entries, libs)
		confDirs = append([]string{compat.Dir}, dirs...)
	}
	// An earlier start, under another driver, may have listed the image's compat directory.
	cache, note := r.newCache(append(slices.Clip(dirs), compat.Dir), libs)
	files = []File{{CachePath, cache}, {confEntryPath, ldcache.ConfEntry(confDirs)}}
	if note != "" {
		notes = append(notes, note)
	}
	conf, err := r.readFile(confPath, maxConf)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		files = append(files, File{confPath, []byte("include " + path.Dir(confEntryPath) + "/*.conf\n")})
	case err != nil:
		notes = append(notes, fmt.Sprintf("%s of the image is left as it is, so a later ldconfig may lose the driver: %v", confPath, err))
	case !ldcache.ConfIncludes(string(conf), confEntryPath):
		// Only our own entry: the other files in that directory were not included before, either.
		files = append(files, File{confPath, append([]byte("include "+confEntryPath+"\n"), conf...)})
	}
	return files, notes
}

// newCache returns the new /etc/ld.so.cache, and a note if none of the image's entries are kept.
// Entries below the directories own are not the image's.
func (r *Root) newCache(own []string, entries []ldcache.Entry) (data []byte, note string) {
	var c *ldcache.Cache
	old, err := r.readFile(CachePath, ldcache.MaxCacheSize)
	if err == nil {
		c, err = ldcache.ParseCache(old)
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		note = fmt.Sprintf("the image has no %s: one of the driver only is made", CachePath)
	case err != nil:
		note = fmt.Sprintf("%s of the image cannot be used and is replaced by one with the driver's libraries only: %v", CachePath, err)
	default:
		c.DropBelow(own)
		c.Prepend(entries)
		if data = c.Encode(); data != nil {
			return data, ""
		}
		note = fmt.Sprintf("%s of the image is too large to be extended and is replaced by one with the driver's libraries only", CachePath)
	}
	c = &ldcache.Cache{}
	c.Prepend(entries)
	return c.Encode(), note
}

// muslFiles returns musl's path file with the driver's directories at the end: they hold libraries
// for glibc, which must not come before the image's own.
func (r *Root) muslFiles(dirs []string, libs []ldcache.Entry) (files []File, notes []string) {
	text, err := r.readFile(muslPath, maxConf)
	if err != nil {
		text = []byte(ldcache.MuslDefault)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		notes = append(notes, fmt.Sprintf("%s of the image cannot be used and is replaced by musl's default: %v", muslPath, err))
	}
	// musl gives up at a library for another ABI instead of searching further.
	dirs = slices.DeleteFunc(slices.Clone(dirs), func(dir string) bool {
		of := func(l ldcache.Entry) bool { return path.Dir(l.Path) == dir }
		return slices.ContainsFunc(libs, of) &&
			!slices.ContainsFunc(libs, func(l ldcache.Entry) bool { return of(l) && l.Flags == ldcache.ABI64.Flags })
	})
	return []File{{muslPath, ldcache.AddMuslDirs(string(text), dirs)}}, notes
}
