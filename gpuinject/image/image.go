package image

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// resolve is how every name in an image is looked up: symbolic links stay inside
// the root, magic links (/proc/PID/root) and mount crossings are refused.
const resolve = unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_NO_XDEV

// ErrNotRegular says that a name exists but is not what the caller may open: a
// FIFO, a device node, a socket or a directory where a file is needed (T09).
var ErrNotRegular = errors.New("not a regular file")

// ErrTooLarge says that a regular file is larger than the caller's limit (T10).
var ErrTooLarge = errors.New("file too large")

// Root is an open root file system of a container.
type Root struct {
	f *os.File
}

// Open opens the directory dir, a host path that the caller (never an image)
// chose, as a root file system.
func Open(dir string) (*Root, error) {
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open root file system: %w", &os.PathError{Op: "open", Path: dir, Err: err})
	}
	return &Root{f: os.NewFile(uintptr(fd), dir)}, nil
}

// Close releases the root. Nothing that was read is affected.
func (r *Root) Close() error { return r.f.Close() }

// IsHost tells whether the root is the root directory of this process itself, as
// in `ctr run --rootfs /`. Nothing may be written there.
func (r *Root) IsHost() bool {
	var a, b unix.Stat_t
	if unix.Fstat(int(r.f.Fd()), &a) != nil || unix.Stat("/", &b) != nil {
		return true
	}
	return a.Dev == b.Dev && a.Ino == b.Ino
}

// lookup resolves name inside the root to an O_PATH descriptor.
func (r *Root) lookup(name string, flags uint64) (*os.File, error) {
	fd, err := r.open(name, flags)
	if err != nil {
		return nil, &os.PathError{Op: "openat2", Path: name, Err: err}
	}
	return os.NewFile(uintptr(fd), name), nil
}

// open is lookup without the cost of an os.File. The caller closes the descriptor.
func (r *Root) open(name string, flags uint64) (int, error) {
	how := unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC | flags, Resolve: resolve}
	return openat2(int(r.f.Fd()), relative(name), &how)
}

// kind is the type of what name resolves to, as in st_mode.
func (r *Root) kind(name string, flags uint64) (uint32, error) {
	fd, err := r.open(name, flags)
	if err != nil {
		return 0, err
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	err = unix.Fstat(fd, &st)
	return st.Mode & unix.S_IFMT, err
}

// openat2 repeats the call where the kernel asks for it: RESOLVE_IN_ROOT answers
// EAGAIN when a rename or mount elsewhere raced with a ".." look-up.
func openat2(dirfd int, name string, how *unix.OpenHow) (int, error) {
	for tries := 0; ; tries++ {
		fd, err := unix.Openat2(dirfd, name, how)
		if (err == unix.EAGAIN || err == unix.EINTR) && tries < 64 {
			continue
		}
		return fd, err
	}
}

// relative turns an absolute path of the container into one below the root.
func relative(name string) string {
	name = strings.TrimLeft(path.Clean("/"+name), "/")
	if name == "" {
		return "."
	}
	return name
}

// Stat describes what name resolves to inside the root, links followed.
func (r *Root) Stat(name string) (fs.FileInfo, error) {
	f, err := r.lookup(name, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return f.Stat()
}

// IsFile tells whether name resolves to a regular file inside the root.
func (r *Root) IsFile(name string) bool {
	kind, err := r.kind(name, 0)
	return err == nil && kind == unix.S_IFREG
}

// Canonical returns the path in the container that name resolves to, links
// followed: "/lib/x86_64-linux-gnu" is "/usr/lib/x86_64-linux-gnu" where /lib is
// a link to /usr/lib. It exists for directories and files alike.
func (r *Root) Canonical(name string) (string, error) {
	f, err := r.lookup(name, 0)
	if err != nil {
		return "", err
	}
	defer f.Close()
	root, err := fdPath(r.f)
	if err != nil {
		return "", err
	}
	full, err := fdPath(f)
	if err != nil {
		return "", err
	}
	if root == "/" {
		return full, nil
	}
	if full == root {
		return "/", nil
	}
	rest, ok := strings.CutPrefix(full, root+"/")
	if !ok {
		return "", &os.PathError{Op: "canonical", Path: name, Err: unix.EXDEV}
	}
	return "/" + rest, nil
}

// maxLinks is how many links a look-up follows: the kernel's MAXSYMLINKS.
const maxLinks = 40

// Target returns the path in the container where name would be made: like
// Canonical, but the last components need not exist, and a link into nowhere leads
// to where it points. It is what a runtime mounts on that makes what is missing.
func (r *Root) Target(name string) string {
	name = path.Clean("/" + name)
	at := name
	for range maxLinks {
		dir, rest := at, ""
		real, err := r.Canonical(dir)
		for err != nil && dir != "/" {
			dir, rest = path.Dir(dir), path.Join(path.Base(dir), rest)
			real, err = r.Canonical(dir)
		}
		if err != nil {
			return name
		}
		if rest == "" {
			return real
		}
		first, more, _ := strings.Cut(rest, "/")
		target, err := r.readlink(path.Join(real, first))
		if err != nil {
			return path.Join(real, rest)
		}
		if !path.IsAbs(target) {
			target = path.Join(real, target)
		}
		at = path.Join(target, more)
	}
	return name
}

// readlink returns what the link name holds.
func (r *Root) readlink(name string) (string, error) {
	f, err := r.lookup(name, unix.O_NOFOLLOW)
	if err != nil {
		return "", err
	}
	defer f.Close()
	buf := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(int(f.Fd()), "", buf)
	if err != nil {
		return "", &os.PathError{Op: "readlink", Path: name, Err: err}
	}
	return string(buf[:n]), nil
}

// fdPath is the kernel's own name for an open file.
func fdPath(f *os.File) (string, error) {
	return os.Readlink("/proc/self/fd/" + strconv.Itoa(int(f.Fd())))
}

// OpenFile opens the regular file name, of at most limit bytes, for reading.
// Errors: fs.ErrNotExist, ErrNotRegular, ErrTooLarge, or what the kernel said.
func (r *Root) OpenFile(name string, limit int64) (*os.File, fs.FileInfo, error) {
	p, err := r.lookup(name, 0)
	if err != nil {
		return nil, nil, err
	}
	defer p.Close()
	info, err := p.Stat()
	if err != nil {
		return nil, nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, nil, &os.PathError{Op: "open", Path: name, Err: ErrNotRegular}
	}
	if info.Size() > limit {
		return nil, nil, &os.PathError{Op: "open", Path: name, Err: ErrTooLarge}
	}
	f, err := os.OpenFile("/proc/self/fd/"+strconv.Itoa(int(p.Fd())), os.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, nil, err
	}
	return f, info, nil
}

// ReadFile reads the regular file name, of at most limit bytes.
func (r *Root) ReadFile(name string, limit int64) ([]byte, error) {
	f, info, err := r.OpenFile(name, limit)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	buf := make([]byte, info.Size())
	n, err := io.ReadFull(f, buf)
	if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, io.EOF) {
		return nil, err
	}
	return buf[:n], nil
}

// ReadDir returns at most limit names of the directory name, unsorted. A
// directory with more entries is an error: no image makes us read forever.
func (r *Root) ReadDir(name string, limit int) ([]string, error) {
	how := unix.OpenHow{Flags: unix.O_RDONLY | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: resolve}
	fd, err := openat2(int(r.f.Fd()), relative(name), &how)
	if err != nil {
		return nil, &os.PathError{Op: "openat2", Path: name, Err: err}
	}
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	names, err := f.Readdirnames(limit + 1)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	if len(names) > limit {
		return nil, fmt.Errorf("directory %q has more than %d entries", name, limit)
	}
	return names, nil
}

// WriteFile makes name a regular file with the given bytes and mode, replacing
// what is there by rename, so that a reader sees the old file or the new one.
// The directory must exist unless mkdir is set, in which case its last component
// is made. The owner is the owner of the directory: that is the container's root
// also where its ids are shifted. A file that already has these bytes is left alone.
//
// It is called before `runc create` only, while the root file system is the only
// mount and no process of the container exists (invariant I4).
func (r *Root) WriteFile(name string, data []byte, mode os.FileMode, mkdir bool) error {
	if r.holds(name, data) {
		return nil
	}
	dirName, base := path.Split(path.Clean("/" + name))
	dirName = path.Clean(dirName)
	dir, err := r.directory(dirName)
	if errors.Is(err, fs.ErrNotExist) && mkdir {
		var above *directory
		if above, err = r.directory(path.Dir(dirName)); err == nil {
			dir, err = above.mkdir(dirName)
			unix.Close(above.fd)
		}
	}
	if err != nil {
		return err
	}
	defer unix.Close(dir.fd)

	// The name is random: an image cannot have put anything there beforehand, and
	// a name left by a killed shim is never in the way.
	var salt [8]byte
	if _, err := rand.Read(salt[:]); err != nil {
		return err
	}
	tmp := "." + base + "." + hex.EncodeToString(salt[:])
	fd, err := unix.Openat(dir.fd, tmp, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, uint32(mode.Perm()))
	if err != nil {
		return &os.PathError{Op: "create", Path: name, Err: err}
	}
	f := os.NewFile(uintptr(fd), name)
	_, err = f.Write(data)
	if err == nil && !dir.ours() {
		err = f.Chown(dir.uid, dir.gid)
	}
	if err == nil {
		err = chmod(f, mode)
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = unix.Renameat(dir.fd, tmp, dir.fd, base)
	}
	if err != nil {
		_ = unix.Unlinkat(dir.fd, tmp, 0)
		return fmt.Errorf("write %s in the image: %w", name, err)
	}
	return nil
}

// holds tells whether name has these bytes. Most often its size says no.
func (r *Root) holds(name string, data []byte) bool {
	f, info, err := r.OpenFile(name, int64(len(data)))
	if err != nil {
		return false
	}
	defer f.Close()
	if info.Size() != int64(len(data)) {
		return false
	}
	old := make([]byte, len(data))
	_, err = io.ReadFull(f, old)
	return err == nil && string(old) == string(data)
}

// chmod gives f these permissions, which it has unless a umask took some: each change is
// written to the disk's journal.
func chmod(f *os.File, mode os.FileMode) error {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err == nil && st.Mode&0o7777 == uint32(mode.Perm()) {
		return nil
	}
	return f.Chmod(mode)
}
