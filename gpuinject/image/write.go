package image

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/openat"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/rawio"
)

// Files, directories and links that are made in an image get the owner of the directory that they
// are in: the container's root, even if its ids are shifted. WriteFile and MakeLink are called
// before `runc create` only, while no process of the container exists (invariant I4). CanWriteFile
// and CanMakeLink are for plans: they return the error that WriteFile and MakeLink would return.

// euid and egid are the owner that this process gives a new file, which does not change.
var euid, egid = uint32(os.Geteuid()), uint32(os.Getegid())

// CanWriteFile returns nil if WriteFile can make name a file, otherwise why not.
func (r *Root) CanWriteFile(name string) error {
	f, err := r.see(name)
	if err == nil && f.is(unix.S_IFDIR) {
		return &os.PathError{Op: "write", Path: name, Err: unix.EISDIR}
	}
	return r.checkDirectory(path.Dir(path.Clean("/" + name)))
}

// WriteFile makes name a regular file with the given bytes and mode 0644, and the missing
// directories above it. An existing file is replaced by rename, so that a reader sees the old file
// or the new one. A file that already has these bytes is left alone.
func (r *Root) WriteFile(name string, data []byte) error {
	if r.hasContent(name, data) {
		return nil
	}
	name = path.Clean("/" + name)
	dir, err := r.makeDirectory(path.Dir(name))
	if err != nil {
		return err
	}
	if err := dir.replaceFile(path.Base(name), data); err != nil {
		return fmt.Errorf("write %s in the image: %w", name, err)
	}
	r.changed(path.Join(dir.path, path.Base(name)))
	return nil
}

// hasContent reports whether name is a regular file with this content.
func (r *Root) hasContent(name string, data []byte) bool {
	at, err := r.lookup(name)
	defer at.close()
	if err != nil || !at.is(unix.S_IFREG) || at.stat.Size != int64(len(data)) {
		return false
	}
	old, err := openat.Read(at.fd, &at.stat, int64(len(data)))
	_ = r.noted(err)
	return err == nil && bytes.Equal(old, data)
}

// CanMakeLink returns nil if MakeLink can make name a link, otherwise why not.
func (r *Root) CanMakeLink(name, own string) error {
	name = path.Clean("/" + name)
	if err := r.checkDirectory(path.Dir(name)); err != nil {
		return err
	}
	place, err := r.Place(name)
	if err != nil {
		return err
	}
	if _, isLink := r.readLink(place); isLink {
		if r.isOwnLink(place, own) {
			return nil
		}
		err = fs.ErrExist
	} else if err = r.links[place].err; errors.Is(err, fs.ErrNotExist) {
		return nil
	} else if err == nil {
		err = fs.ErrExist
	}
	return &os.PathError{Op: "symlink", Path: name, Err: err}
}

// MakeLink makes name a symbolic link to target, and the missing directories above it. An existing
// file stays, and the error is fs.ErrExist, unless it is a link into the directory own: such a link
// was left by an earlier start of the container and is replaced.
func (r *Root) MakeLink(name, target, own string) error {
	name = path.Clean("/" + name)
	dir, err := r.makeDirectory(path.Dir(name))
	if err != nil {
		return err
	}
	base := path.Base(name)
	place := path.Join(dir.path, base)
	if err = dir.symlink(base, target); errors.Is(err, fs.ErrExist) {
		old := r.readLinkIn(dir.fd, base, place)
		if old.is && r.isOwnLink(place, own) {
			if old.text == target {
				return nil
			}
			if err = unix.Unlinkat(dir.fd, base, 0); err == nil {
				err = dir.symlink(base, target)
			}
		}
	}
	if err != nil {
		return &os.PathError{Op: "symlink", Path: name, Err: err}
	}
	r.changed(place)
	return nil
}

// Place returns the path in the container at which WriteFile and MakeLink make name: links above it
// are followed, while name itself may be a link.
func (r *Root) Place(name string) (string, error) {
	name = path.Clean("/" + name)
	dir := path.Dir(name)
	d := r.directory(dir)
	if errors.Is(d.err, errTooManyLinks) {
		return path.Join("", path.Base(name)), fmt.Errorf("%.256q of the image: %w", dir, errTooManyLinks)
	}
	return path.Join(d.path, path.Base(name)), nil
}

// isOwnLink reports whether the link at a path leads into the directory own.
func (r *Root) isOwnLink(place, own string) bool {
	target, _, err := r.follow(place)
	return err == nil && strings.HasPrefix(target, own+"/") // guard: image: only own links replaced
}

// whyNotWritable returns why nothing can be made in a directory.
func (r *Root) whyNotWritable(dir found) error {
	var system unix.Statfs_t
	var attributes unix.Statx_t
	err := r.notedAny(unix.Fstatfs(dir.fd, &system))
	if err == nil {
		err = r.notedAny(unix.Statx(dir.fd, "", unix.AT_EMPTY_PATH, 0, &attributes))
	}
	switch {
	case !dir.is(unix.S_IFDIR):
		return unix.ENOTDIR
	case err == nil && system.Flags&unix.ST_RDONLY != 0:
		return unix.EROFS
	case err == nil && attributes.Attributes&unix.STATX_ATTR_IMMUTABLE != 0:
		return unix.EPERM
	}
	return err
}

// makeDirectory opens the directory name, after making it and the directories above it if they are
// missing. It stays open until the root is closed. The directories of a plan are opened again: a
// mount may be there by now.
func (r *Root) makeDirectory(name string) (found, error) {
	if dir, ok := r.made[name]; ok {
		return dir, nil
	}
	dir, err := r.lookup(name)
	if errors.Is(err, fs.ErrNotExist) {
		above, aboveErr := r.makeDirectory(path.Dir(name))
		if aboveErr != nil {
			return above, aboveErr
		}
		if err = above.mkdir(path.Base(name)); err != nil {
			return dir, &os.PathError{Op: "mkdir", Path: name, Err: err}
		}
		r.changed(path.Join(above.path, path.Base(name)))
		dir, err = r.lookup(name)
	}
	if err == nil && !dir.is(unix.S_IFDIR) {
		dir.close()
		err = &os.PathError{Op: "open", Path: name, Err: unix.ENOTDIR}
	}
	if err != nil {
		return dir, err
	}
	if r.made == nil {
		r.made = map[string]found{}
	}
	r.made[name] = dir
	return dir, nil
}

// mkdir makes a directory base in f that every user of the container can read, whatever
// containerd's umask is.
func (f *found) mkdir(base string) error {
	if err := unix.Mkdirat(f.fd, base, 0); err != nil {
		return err
	}
	return f.adoptName(base, unix.O_RDONLY|unix.O_DIRECTORY, unix.S_IFDIR, 0o755)
}

func (f *found) symlink(base, target string) error {
	if err := unix.Symlinkat(target, f.fd, base); err != nil || f.isOurs() {
		return err
	}
	return f.adoptName(base, unix.O_PATH, unix.S_IFLNK|0o777, 0)
}

// replaceFile makes a file base in f with the given bytes. Another shim that writes into the same
// root file system may remove the temporary file.
func (f *found) replaceFile(base string, data []byte) (err error) {
	for range 10 {
		err = f.writeAndRename(base, data)
		if !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.EEXIST) {
			break
		}
	}
	return err
}

func (f *found) writeAndRename(base string, data []byte) error {
	temporary := "." + base + ".nvidia-shim"
	// guard: image: temporary file
	fd, err := unix.Openat(f.fd, temporary, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.EEXIST) { // a killed shim or the image may have left it
		_ = unix.Unlinkat(f.fd, temporary, 0)
	}
	if err != nil {
		return err
	}
	err = rawio.Write(fd, data)
	if err == nil {
		err = f.adopt(fd, unix.S_IFREG, 0o644)
	}
	if cerr := unix.Close(fd); err == nil {
		err = cerr
	}
	if err == nil {
		err = unix.Renameat(f.fd, temporary, f.fd, base)
	}
	if err != nil {
		_ = unix.Unlinkat(f.fd, temporary, 0)
	}
	return err
}

// isOurs reports whether f has the owner that this process gives a new file.
func (f *found) isOurs() bool {
	return f.stat.Uid == euid && f.stat.Gid == egid
}

// adoptName calls adopt for a name in f.
func (f *found) adoptName(base string, flags int, made, mode uint32) error {
	fd, err := unix.Openat(f.fd, base, flags|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return f.adopt(fd, made, mode)
}

// adopt gives a file that was just made in f, with the st_mode made, the owner of f and the
// permissions mode. If the root file system is shared, another process may have replaced it since:
// the change is made by descriptor, and only to a file of that type that has no permissions yet and
// belongs to this process.
func (f *found) adopt(fd int, made, mode uint32) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if st.Mode&^unix.S_ISGID != made || st.Uid != euid { // guard: image: type of new files; image: new files our own
		return unix.EEXIST
	}
	if st.Uid != f.stat.Uid || st.Gid != f.stat.Gid { // guard: image: owner of new files
		if err := unix.Fchownat(fd, "", int(f.stat.Uid), int(f.stat.Gid), unix.AT_EMPTY_PATH); err != nil {
			return err
		}
	}
	if made&unix.S_IFMT == unix.S_IFLNK {
		return nil
	}
	return unix.Fchmod(fd, mode)
}

// checkDirectory returns why nothing can be made in the directory name of the image: it, or the
// nearest existing one above it, is not a directory, a dangling link (such as /etc -> /proc/1/root,
// attack T06), on another mount, immutable (chattr +i), or on a read-only file system.
func (r *Root) checkDirectory(name string) error {
	d := r.directory(name)
	if errors.Is(d.err, fs.ErrNotExist) {
		place, _ := r.Place(name)
		if _, isLink := r.readLink(place); isLink {
			return &os.PathError{Op: "mkdir", Path: name, Err: fs.ErrExist}
		}
		return r.checkDirectory(path.Dir(name))
	}
	if d.err != nil {
		return d.err
	}
	if !d.checked {
		d.checked, d.why = true, r.whyNotWritable(d.found)
	}
	if d.why != nil {
		return &os.PathError{Op: "open", Path: name, Err: d.why}
	}
	return nil
}

// CheckMountPoint returns why a runtime cannot make name a mount point, or must not, because it
// would be made on the host: the root is the host's, or name is on another mount.
func (r *Root) CheckMountPoint(name string) error {
	if r.IsHost() { // guard: image: no mount point on the host
		return errHost
	}
	_, err := r.see(name)
	if errors.Is(err, unix.EXDEV) { // guard: image: no mount point in other mounts
		return fmt.Errorf("nothing is put at %s: another mount of the host is there", name)
	}
	if err := r.CanBeThere(name); err != nil {
		return fmt.Errorf("nothing is put at %s: %w", name, err)
	}
	return nil
}

// CanBeThere returns nil if name is in the image or can be made, otherwise why not.
func (r *Root) CanBeThere(name string) error {
	f, err := r.see(name)
	switch {
	case errors.Is(err, unix.ENOENT):
		return r.checkDirectory(path.Dir(f.path))
	case errors.Is(err, unix.EXDEV): // on another mount
		return nil
	}
	return err
}
