package image

import (
	"errors"
	"fmt"
	"os"
	"path"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// FuzzLookup makes links and directories in an image, one of each line of tree: "name target", or
// "name". A name then leads to what the kernel finds with the image as the root directory, or
// nowhere, and never out of it.
func FuzzLookup(f *testing.F) {
	f.Add("a/b\nl a/b\nm ../../l/..", "m/b")
	f.Add("etc ../../../../host\nx /etc/secret\ny /proc/1/root", "x")
	f.Add("a b\nb c\nc a", "/a/../b")
	f.Add("d/e/f\nd/g ../d/e\nh /d/g/f/../..", "h/e/f/.")
	f.Fuzz(func(t *testing.T, tree, name string) {
		i := newImage(t)
		dir, err := os.OpenRoot(i.dir)
		check(t, err)
		defer dir.Close()
		for n, line := range strings.Split(tree, "\n") {
			link, target, isLink := strings.Cut(line, " ")
			link = strings.TrimPrefix(path.Clean("/"+link), "/")
			if n == 50 || strings.ContainsRune(tree+name, 0) {
				return
			}
			if _ = dir.MkdirAll(path.Dir(link), 0o755); isLink {
				_ = dir.Symlink(target, link)
			} else {
				_ = dir.MkdirAll(link, 0o755)
			}
		}
		clean := path.Clean("/" + name)
		got, err := i.lookup(clean)
		defer got.close()
		// Nothing else is found once the directory is open, and once the name has been looked up.
		i.directory(path.Dir(clean))
		for range 2 {
			again, againErr := i.see(name)
			if again.path != got.path || !slices.Equal(again.links, got.links) || again.stat.Ino != got.stat.Ino || fmt.Sprint(againErr) != fmt.Sprint(err) {
				if !errors.Is(err, errTooManyLinks) {
					t.Fatalf("%q: %+v, %v; first %+v, %v", name, again, againErr, got, err)
				}
			}
		}
		if _, err := i.readFile(name, 100); err == nil {
			t.Fatalf("%q is a file: the image has none", name)
		}
		how := unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS}
		fd, kernelErr := unix.Openat2(int(i.f.Fd()), "./"+path.Clean("/"+name), &how)
		if kernelErr != nil {
			return
		}
		defer unix.Close(fd)
		var want unix.Stat_t
		check(t, unix.Fstat(fd, &want))
		if err == nil && got.stat.Ino != want.Ino || err != nil && !errors.Is(err, errTooManyLinks) {
			t.Fatalf("%q leads to %q, %v, and not where the kernel goes", name, got.path, err)
		}
	})
}
