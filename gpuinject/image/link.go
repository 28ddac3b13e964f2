package image

import (
	"errors"
	"io/fs"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"
)

// Links makes symbolic links in a root. Each directory is looked up once, for many links.
//
// It is used before `runc create` only, like WriteFile (invariant I4).
type Links struct {
	root *Root
	own  string
	dirs map[string]*directory
}

// directory is one that something is made in.
type directory struct {
	fd       int
	uid, gid int
}

// Links begins to make links. own is a directory of the container whose content is ours.
// The caller closes it.
func (r *Root) Links(own string) *Links {
	return &Links{root: r, own: own, dirs: map[string]*directory{}}
}

// Close closes the directories.
func (l *Links) Close() {
	for _, d := range l.dirs {
		unix.Close(d.fd)
	}
}

// Make makes name a symbolic link to target, with the directories above it that the
// image lacks. What is there already stays, and the error is fs.ErrExist, but for a link
// that leads into the directory that is ours: one to target is what is asked for, and
// another one is replaced. Links and directories belong to the owner of the directory
// that they are in, as with WriteFile.
func (l *Links) Make(name, target string) error {
	dirName, base := path.Split(path.Clean("/" + name))
	dir, err := l.directory(path.Clean(dirName))
	if err != nil {
		return err
	}
	err = unix.Symlinkat(target, dir.fd, base)
	if errors.Is(err, unix.EEXIST) {
		old, lerr := l.root.readlink(name)
		if lerr != nil || !leadsInto(l.root.Target(name), l.own) {
			return &os.PathError{Op: "symlink", Path: name, Err: fs.ErrExist}
		}
		if old == target {
			return nil
		}
		if err = unix.Unlinkat(dir.fd, base, 0); err == nil {
			err = unix.Symlinkat(target, dir.fd, base)
		}
	}
	if err == nil && !dir.ours() {
		err = unix.Fchownat(dir.fd, base, dir.uid, dir.gid, unix.AT_SYMLINK_NOFOLLOW)
	}
	if err != nil {
		return &os.PathError{Op: "symlink", Path: name, Err: err}
	}
	return nil
}

// CanMake tells whether Make would find a place for the link itself: for those who may
// not change the image.
func (l *Links) CanMake(name string) bool {
	kind, err := l.root.kind(name, unix.O_NOFOLLOW)
	if err != nil {
		return errors.Is(err, unix.ENOENT)
	}
	return kind == unix.S_IFLNK && leadsInto(l.root.Target(name), l.own)
}

func leadsInto(name, dir string) bool { return strings.HasPrefix(name, dir+"/") }

// directory opens a directory, for what is to be made in it, and makes it and those
// above it where they are missing.
func (l *Links) directory(name string) (*directory, error) {
	if d, ok := l.dirs[name]; ok {
		return d, nil
	}
	d, err := l.root.directory(name)
	if errors.Is(err, fs.ErrNotExist) && name != "/" {
		var above *directory
		if above, err = l.directory(path.Dir(name)); err == nil {
			d, err = above.mkdir(name)
		}
	}
	if err != nil {
		return nil, err
	}
	l.dirs[name] = d
	return d, nil
}

// directory opens a directory of the image.
func (r *Root) directory(name string) (*directory, error) {
	fd, err := r.open(name, unix.O_DIRECTORY)
	if err != nil {
		return nil, &os.PathError{Op: "openat2", Path: name, Err: err}
	}
	d := &directory{fd: fd}
	if _, err := d.stat(); err != nil {
		unix.Close(fd)
		return nil, &os.PathError{Op: "fstat", Path: name, Err: err}
	}
	return d, nil
}

// stat reads the owner, and returns the permissions.
func (d *directory) stat() (mode uint32, err error) {
	var st unix.Stat_t
	if err := unix.Fstat(d.fd, &st); err != nil {
		return 0, err
	}
	d.uid, d.gid = int(st.Uid), int(st.Gid)
	return st.Mode & 0o7777, nil
}

// ours tells whether what is made in the directory has its owner already.
func (d *directory) ours() bool { return d.uid == os.Geteuid() && d.gid == os.Getegid() }

// mkdir makes and opens the last component of name in d, mode 0755, owned like d.
func (d *directory) mkdir(name string) (*directory, error) {
	base := path.Base(name)
	if err := unix.Mkdirat(d.fd, base, 0o755); err != nil {
		return nil, &os.PathError{Op: "mkdir", Path: name, Err: err}
	}
	fd, err := unix.Openat(d.fd, base, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: name, Err: err}
	}
	made := &directory{fd: fd}
	mode, err := made.stat()
	// Each change is written to the disk's journal: most often there is nothing to change.
	if err == nil && (made.uid != d.uid || made.gid != d.gid) {
		made.uid, made.gid = d.uid, d.gid
		err = unix.Fchown(fd, d.uid, d.gid)
	}
	if err == nil && mode != 0o755 {
		// Whatever containerd's umask is: programs that are not root read what is in it.
		err = unix.Fchmod(fd, 0o755)
	}
	if err != nil {
		unix.Close(fd)
		return nil, &os.PathError{Op: "mkdir", Path: name, Err: err}
	}
	return made, nil
}
