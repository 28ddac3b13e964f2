package image

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/openat"
)

// Limits of one look-up. The kernel follows 40 links too, but each of them may have 2,000
// components of its own. maxWalked bounds the components that the kernel walks for all look-ups in
// an image, of which each mount of a container is one; it is reached in less than a second.
const (
	maxLinks      = 40
	maxComponents = 256
	maxWalked     = 1 << 20
)

var (
	// errTooManyLinks means that a look-up reached its limits.
	errTooManyLinks = fmt.Errorf("more than %d symbolic links or %d directories to go through, or too many for all names together", maxLinks, maxComponents)
	// errHost means that the root is the host's.
	errHost = errors.New("the root file system is the host's own: it gets the driver's directory only")
)

// Root is an open root file system of a container. Names are looked up once: what was found is kept
// until this process changes the image.
type Root struct {
	f      *os.File
	failed error
	walked int // see maxWalked

	seen  map[string]seen       // look-ups, by name
	links map[string]link       // by path without links above it
	dirs  map[string]*directory // the directories of the names that a plan asks for, open
	made  map[string]found      // the directories in which something was made, open
	other bool                  // the root is known not to be the host's
}

// maxSeen bounds the look-ups that are kept. The names of a container's mounts can be many more.
const maxSeen = 1024

// seen is what a look-up found, without a descriptor.
type seen struct {
	found
	err error
}

// link is what readLink found: err is for a path that is absent or cannot be opened.
type link struct {
	text string
	is   bool
	err  error
}

// directory is a directory of the image, or the error of its look-up. why says why nothing can be
// made in it; it is not known before checked is true.
type directory struct {
	found
	err, why error
	checked  bool
}

// Err returns the error of the first read that failed because this host has run out of memory or
// descriptors, or its disk failed. The file was treated as absent, so decisions must not be based
// on what was read.
func (r *Root) Err() error { return r.failed }

// noted keeps an error for Err and returns it.
func (r *Root) noted(err error) error {
	for _, host := range []unix.Errno{unix.ENOMEM, unix.EMFILE, unix.ENFILE, unix.EIO} {
		if errors.Is(err, host) { // guard: image: failed reads
			return r.notedAny(err)
		}
	}
	return err
}

// notedAny is noted for a call on an open file: all its errors are due to this host.
func (r *Root) notedAny(err error) error {
	if r.failed == nil {
		r.failed = err
	}
	return err
}

// Open opens the directory dir, a host path that the caller (never an image) chose, as a root file
// system.
func Open(dir string) (*Root, error) {
	fd, err := openat.Root(dir)
	if err != nil {
		return nil, fmt.Errorf("open root file system: %w", err)
	}
	return &Root{f: os.NewFile(uintptr(fd), dir)}, nil
}

// Close releases the root.
func (r *Root) Close() error {
	for _, d := range r.dirs {
		d.close()
	}
	for _, d := range r.made {
		d.close()
	}
	return r.f.Close()
}

// IsHost reports whether the root is the root directory of this process itself, as in
// `ctr run --rootfs /`. Nothing may be written there.
func (r *Root) IsHost() bool {
	if r.other {
		return false
	}
	var a, b unix.Stat_t
	err := r.notedAny(unix.Fstat(int(r.f.Fd()), &a)) // guard: image: a root that cannot be compared
	if err == nil {
		err = r.notedAny(unix.Stat("/", &b))
	}
	r.other = !(err != nil || a.Dev == b.Dev && a.Ino == b.Ino) // guard: image: host's root left alone
	return !r.other
}

// Target returns the path in the container where a runtime would make name: links are followed, and
// components that do not exist are kept, so that a dangling link leads to where it points. An error
// means that the image has too many links on the way.
func (r *Root) Target(name string) (string, error) {
	way, err := r.Way(name)
	if err != nil {
		return "", err
	}
	return way[len(way)-1], nil
}

// Way returns the paths of the links that a runtime follows to make name, and Target's answer.
func (r *Root) Way(name string) ([]string, error) {
	f, err := r.see(name)
	if errors.Is(err, errTooManyLinks) {
		return nil, fmt.Errorf("%.256q of the image: %w", name, errTooManyLinks)
	}
	return append(slices.Clip(f.links), f.path), nil
}

// IsFile reports whether name resolves to a regular file inside the root.
func (r *Root) IsFile(name string) bool {
	f, err := r.see(name)
	return err == nil && f.is(unix.S_IFREG)
}

// found is the file that a name in the image leads to.
type found struct {
	path  string   // in the image, without links
	links []string // the paths of the links that lead there
	fd    int      // an O_PATH descriptor, -1 if there is no file
	stat  unix.Stat_t
}

func (f *found) is(kind uint32) bool { return f.stat.Mode&unix.S_IFMT == kind }

func (f *found) close() {
	if f.fd >= 0 {
		unix.Close(f.fd)
	}
}

// see returns what name resolves to, like lookup, but without a descriptor.
func (r *Root) see(name string) (found, error) {
	name = path.Clean("/" + name)
	if s, ok := r.seen[name]; ok {
		return s.found, s.err
	}
	f, err := r.examine(name)
	f.close()
	f.fd = -1
	if errors.Is(err, unix.ENOENT) && r.links[f.path].err == nil {
		r.keepLink(f.path, link{err: unix.ENOENT})
	}
	if r.seen == nil {
		r.seen = map[string]seen{}
	}
	if len(r.seen) < maxSeen {
		r.seen[name] = seen{f, err}
	}
	return f, err
}

// examine is lookup for a clean name. If the directory of the name is open, one system call shows
// that nothing is there, or the text of a link.
func (r *Root) examine(name string) (f found, err error) {
	if absent := r.firstKnown(name).err; absent != nil {
		return found{path: name, fd: -1}, &os.PathError{Op: "look up", Path: name, Err: absent}
	}
	d, ok := r.dirs[path.Dir(name)]
	if !ok || name == "/" || d.err == nil && !d.is(unix.S_IFDIR) {
		return r.lookup(name)
	}
	base := path.Base(name)
	f = found{path: path.Join(d.path, base), links: d.links, fd: -1}
	var pathErr *os.PathError
	if errors.As(d.err, &pathErr) {
		return f, &os.PathError{Op: "look up", Path: name, Err: pathErr.Err}
	}
	l := r.readLinkIn(d.fd, base, f.path)
	switch {
	case l.err != nil:
		return f, &os.PathError{Op: "look up", Path: name, Err: l.err}
	case l.is:
		return r.lookupLinks(name)
	}
	return r.lookup(name)
}

// firstKnown returns what is known of the first component of a clean path that is a link or absent.
func (r *Root) firstKnown(name string) link {
	for i, c := range name + "/" {
		if l := r.links[name[:i]]; c == '/' && (l.is || l.err != nil) {
			return l
		}
	}
	return link{}
}

// directory returns the directory name and keeps it open. It is for names of which a plan has few.
func (r *Root) directory(name string) *directory {
	if d, ok := r.dirs[name]; ok {
		return d
	}
	f, err := r.lookup(name)
	if r.dirs == nil {
		r.dirs = map[string]*directory{}
	}
	r.dirs[name] = &directory{found: f, err: err}
	return r.dirs[name]
}

// changed forgets what was found out about a path at which this process has made something.
func (r *Root) changed(real string) {
	clear(r.seen)
	maps.DeleteFunc(r.links, func(at string, _ link) bool { return at == real || strings.HasPrefix(at, real+"/") })
	maps.DeleteFunc(r.dirs, func(_ string, d *directory) bool { return d.err != nil })
}

// lookup opens what name resolves to. If the error is not errTooManyLinks, the path is where name
// would be made.
func (r *Root) lookup(name string) (f found, err error) {
	f.path = path.Clean("/" + name)
	if r.firstKnown(f.path).is {
		return r.lookupLinks(name)
	}
	f.fd, err = r.open(f.path, 0)
	if errors.Is(err, unix.ELOOP) {
		return r.lookupLinks(name)
	}
	return r.examined(f, name, err)
}

// lookupLinks is lookup for a name on whose way links are.
func (r *Root) lookupLinks(name string) (f found, err error) {
	f.fd = -1
	f.path, f.links, err = r.follow(path.Clean("/" + name))
	if err == nil {
		if err = r.links[f.path].err; err == nil {
			f.fd, err = r.open(f.path, 0)
		}
	}
	return r.examined(f, name, err)
}

// examined returns the result of a look-up, with the state of an open file.
func (r *Root) examined(f found, name string, err error) (found, error) {
	if err == nil {
		if err = r.notedAny(unix.Fstat(f.fd, &f.stat)); err != nil {
			f.close()
			f.fd = -1
		}
	}
	if err != nil {
		err = &os.PathError{Op: "look up", Path: name, Err: err}
	}
	return f, err
}

// open opens an absolute path without links as an O_PATH descriptor, which the caller closes. With
// O_NOFOLLOW, the last component may be a link. The kernel follows none (see Root.follow).
func (r *Root) open(real string, flags uint64) (int, error) {
	fd, err := openat.Open(int(r.f.Fd()), real, flags, openat.OneMount)
	return fd, r.noted(err)
}

// follow resolves the links of a path, component by component, and lists the paths of the links. A
// component that cannot be opened is treated as one that does not exist yet; the caller gets the
// error when it opens the result.
func (r *Root) follow(name string) (at string, links []string, err error) {
	at, todo := "/", components(name)
	for steps := 0; len(todo) > 0; steps++ {
		if len(links) > maxLinks || steps >= maxComponents { // guard: image: 40 links; image: 256 components
			return "", nil, errTooManyLinks
		}
		// No component of at is a link, so ".." can be resolved textually.
		next := path.Join(at, todo[0])
		todo = todo[1:]
		if r.walked += strings.Count(next, "/"); r.walked > maxWalked { // guard: image: all look-ups together
			return "", nil, errTooManyLinks
		}
		target, isLink := r.readLink(next)
		if !isLink {
			at = next
			continue
		}
		links = append(links, next)
		if path.IsAbs(target) {
			at = "/"
		}
		todo = slices.Concat(components(target), todo)
	}
	return at, links, nil
}

func components(name string) []string {
	return strings.FieldsFunc(name, func(c rune) bool { return c == '/' })
}

// readLink returns the text of the symbolic link real, a path without links above it.
func (r *Root) readLink(real string) (target string, isLink bool) {
	if l, ok := r.links[real]; ok {
		return l.text, l.is
	}
	if above := r.links[path.Dir(real)].err; above != nil {
		r.keepLink(real, link{err: above})
		return "", false
	}
	fd, err := r.open(real, unix.O_NOFOLLOW)
	if err != nil {
		r.keepLink(real, link{err: err})
		return "", false
	}
	defer unix.Close(fd)
	l := r.readLinkIn(fd, "", real)
	return l.text, l.is
}

// readLinkIn reads the link name in the directory dir, or dir itself if name is empty. real is its
// path. The kernel follows nothing for readlink(2), and a mount over name is not a link.
func (r *Root) readLinkIn(dir int, name, real string) (l link) {
	buf := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(dir, name, buf)
	switch {
	case err == nil:
		l = link{text: string(buf[:n]), is: true}
	case errors.Is(err, unix.EINVAL) || name == "": // something else
		_ = r.noted(err)
	default:
		l.err = r.noted(err)
	}
	r.keepLink(real, l)
	return l
}

func (r *Root) keepLink(real string, l link) {
	if r.links == nil {
		r.links = map[string]link{}
	}
	if _, ok := r.links[real]; ok || len(r.links) < maxSeen {
		r.links[real] = l
	}
}

// openFile opens the regular file name, of at most limit bytes, for reading and returns its size.
func (r *Root) openFile(name string, limit int64) (openat.File, int64, error) {
	at, err := r.lookup(name)
	if err != nil {
		return openat.File{}, 0, err
	}
	defer at.close()
	f, err := openat.Reader(at.fd, &at.stat, limit)
	return f, at.stat.Size, r.named(name, err)
}

func (r *Root) readFile(name string, limit int64) ([]byte, error) {
	at, err := r.lookup(name)
	if err != nil {
		return nil, err
	}
	defer at.close()
	data, err := openat.Read(at.fd, &at.stat, limit) // guard: image: file size
	return data, r.named(name, err)
}

// readDir returns the names in the directory name, unsorted. More than limit names are an error, so
// that no image can make the shim read for long.
func (r *Root) readDir(name string, limit int) ([]string, error) {
	if _, err := r.see(name); err != nil {
		return nil, err
	}
	at, err := r.lookup(name)
	if err != nil {
		return nil, err
	}
	defer at.close()
	names, err := openat.ReadDir(at.fd, limit)
	return names, r.named(name, err)
}

// named is noted, and gives the error of an open file its name in the image.
func (r *Root) named(name string, err error) error {
	if err == nil {
		return nil
	}
	_ = r.noted(err)
	if path := new(os.PathError); errors.As(err, &path) {
		err = path.Err
	}
	return &os.PathError{Op: "read", Path: name, Err: err}
}
